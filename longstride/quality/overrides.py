"""An operator lets a blocked gate pass, by name and reason; the verdict records both."""

from __future__ import annotations

import os
from pathlib import Path

from longstride.errors import UsageError
from longstride.store.files import read_json, write_json
from schemas.verdict import EDGE_TITLES, Override, Verdict

RUN_DIRECTORY_VARIABLE = "LONGSTRIDE_RUN_DIR"
FOLDER = "overrides"


def record_override(run_dir: Path, gate: str, operator: str, reason: str) -> Path:
    """Record that `gate` (`edge/stage`, for example `E1/corpus`) may pass in this run.

    Raises:
        UsageError: The gate's name is malformed or blocks nothing, or the operator or the reason
            is empty.
    """
    edge, _, stage = gate.partition("/")
    if edge not in EDGE_TITLES or not stage:
        raise UsageError(
            f"{gate!r} is not the name of a gate; write edge/stage, for example E1/corpus, as the "
            "blocked gate's message does"
        )
    if not operator.strip() or not reason.strip():
        raise UsageError("an override needs a name (--by) and a reason (--reason), not empty ones")
    blocked = blocked_gates(run_dir)
    if gate not in blocked:
        raise UsageError(
            f"{gate!r} does not block this run; blocked gates: "
            f"{', '.join(sorted(blocked)) or 'none'}"
        )
    path = _path(run_dir, edge, stage)
    write_json(path, Override(operator=operator.strip(), reason=reason.strip()))
    return path


def blocked_gates(run_dir: Path) -> set[str]:
    """Names (`edge/stage`) of gates whose verdict blocks this run and is not overridden."""
    paths = sorted(run_dir.glob("tasks/**/verdict.json"), key=lambda path: path.stat().st_mtime_ns)
    verdicts = [read_json(path, Verdict) for path in paths]
    latest = {f"{verdict.edge}/{verdict.stage}": verdict for verdict in verdicts}
    return {name for name, verdict in latest.items() if not verdict.passed}


def find_override(edge: str, stage: str) -> Override | None:
    """The override of a gate in the run that this process belongs to, if there is one."""
    run_dir = os.environ.get(RUN_DIRECTORY_VARIABLE)
    if not run_dir or not _path(Path(run_dir), edge, stage).is_file():
        return None
    return read_json(_path(Path(run_dir), edge, stage), Override)


def _path(run_dir: Path, edge: str, stage: str) -> Path:
    return run_dir / FOLDER / f"{edge}-{stage}.json"
