"""Where a command finds runs."""

from __future__ import annotations

from pathlib import Path

from longstride.errors import UsageError


def find_run(named: str, runs: Path) -> Path:
    """The folder of a run, given as a path or as a name below `runs`.

    Raises:
        UsageError: There is no such run.
    """
    for candidate in (Path(named), runs / named):
        if (candidate / "state.sqlite").is_file():
            return candidate.resolve()
    raise UsageError(
        f"there is no run {named!r} here or in {runs}; `longstride runs` lists what there is"
    )
