"""The last blessed profile of every gate, which the next run's drift is told against.

A profile is blessed by name (`longstride bless RUN`), never by a gate itself: a gate reads the
store and writes nothing to it, so that a retried gate sees what its first attempt saw. The store is
a directory of JSON files; it lies beside the runs, or where `LONGSTRIDE_BASELINES` says.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from longstride.errors import DataError, GateCouldNotRun, UsageError
from longstride.quality.overrides import RUN_DIRECTORY_VARIABLE
from longstride.store.files import read_json, write_json
from schemas.verdict import Profile, Verdict

STORE_VARIABLE: Final = "LONGSTRIDE_BASELINES"
FOLDER: Final = "quality-baselines"
PROFILE: Final = "profile.json"
KEPT: Final = 8
"""Blessed profiles that are kept a gate, the newest included."""


def find(recipe: str, edge: str, stage: str) -> Profile | None:
    """The last blessed profile of a gate; None where there is no store, or none in it.

    Raises:
        GateCouldNotRun: There is one, but it cannot be read.
    """
    store = _store()
    if store is None:
        return None
    numbers = _numbers(store / _key(recipe, edge, stage))
    if not numbers:
        return None
    path = store / _key(recipe, edge, stage) / f"{numbers[-1]:06}.json"
    try:
        return read_json(path, Profile)
    except DataError as error:
        raise GateCouldNotRun(f"the baseline cannot be used: {error}") from error


def bless(run_dir: Path, store: Path | None = None) -> list[str]:
    """Make the profiles of a run's gates the baselines; return their names.

    Only gates that passed without an override count. Blessing a run twice changes nothing.

    Raises:
        UsageError: No gate of the run passed without an override.
    """
    place = store or _store(run_dir) or run_dir.parent / FOLDER
    latest: dict[str, tuple[Verdict, Path]] = {}
    for path in sorted(run_dir.glob("tasks/**/verdict.json"), key=lambda p: p.stat().st_mtime_ns):
        verdict = read_json(path, Verdict)
        latest[f"{verdict.edge}/{verdict.stage}"] = verdict, path.parent / PROFILE
    blessed = []
    for name, (verdict, profile) in sorted(latest.items()):
        if verdict.passed and verdict.override is None and profile.is_file():
            add(place, read_json(profile, Profile))
            blessed.append(name)
    if not blessed:
        raise UsageError(
            f"{run_dir} has no gate that passed without an override; there is nothing to bless"
        )
    return blessed


def add(store: Path, profile: Profile) -> None:
    """Make a profile the newest of its gate, unless it already is; forget the oldest."""
    folder = store / _key(profile.recipe, profile.edge, profile.stage)
    numbers = _numbers(folder)
    if numbers and read_json(folder / f"{numbers[-1]:06}.json", Profile) == profile:
        return
    write_json(folder / f"{(numbers[-1] if numbers else 0) + 1:06}.json", profile)
    for number in numbers[: max(0, len(numbers) + 1 - KEPT)]:
        (folder / f"{number:06}.json").unlink(missing_ok=True)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.stem) for path in folder.glob("[0-9]*.json"))


def _key(recipe: str, edge: str, stage: str) -> str:
    return f"{recipe}/{edge}-{re.sub(r'[^A-Za-z0-9.-]', '_', stage)}"


def _store(run_dir: Path | None = None) -> Path | None:
    if named := os.environ.get(STORE_VARIABLE):
        return Path(named)
    run = run_dir or os.environ.get(RUN_DIRECTORY_VARIABLE)
    return Path(run).parent / FOLDER if run else None
