"""From a run directory, or an artifact root, to the record that the report shows."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from longstride.errors import PipelineError
from longstride.report.artifacts import KINDS, Findings
from longstride.report.record import AttemptRecord, CollectedRun
from longstride.report.render import render_report
from longstride.report.tree import build
from longstride.store.files import write_text
from schemas.base import digest_of
from schemas.run import TaskRecord, TaskStateName

if TYPE_CHECKING:
    from longstride.runner import TaskState


def collect(run_dir: Path) -> CollectedRun:
    """Read a run of the embedded executor in any state.

    A missing or malformed artifact becomes one of the record's notes.

    Raises:
        PipelineError: The directory holds no run, or its state cannot be read.
    """
    from longstride.runner import read_run, read_tasks

    try:
        run, states = read_run(run_dir), read_tasks(run_dir)
    except sqlite3.DatabaseError as error:
        raise PipelineError(
            f"{run_dir}: the state of the run cannot be read ({error}); use the artifact root"
        ) from error
    record = CollectedRun(
        run_id=run.run_id,
        name=run.run_name or run.pipeline_name,
        state=run.state,
        started_at=run.started_at,
        finished_at=run.finished_at,
        error=run.error,
        tasks=[_task(state) for state in states],
        attempt_log={state.path: _attempts(state) for state in states},
        cache_reasons={state.path: state.cache_reason for state in states if state.cache_reason},
    )
    if run.state == "RUNNING" and not run.alive:
        record.notes.append("no executor holds this run: it was killed, and can be resumed")
    findings = Findings()
    tree = build(record.tasks)
    by_path = {state.path: state for state in states}
    for path in tree.leaves():
        stage = tree.stage(path) or tree.tasks[path].display_name
        for uri, optional in _places(by_path[path], run_dir):
            _read(findings, uri, path, stage, run_dir, optional=optional)
    _loose(findings, run_dir)
    return _finish(record, findings)


def collect_from_root(
    root: Path,
    state: str = "UNKNOWN",
    *,
    run_id: str = "",
    name: str = "",
    started_at: float | None = None,
    finished_at: float | None = None,
    error: str | None = None,
) -> CollectedRun:
    """Read an artifact root without executor state, for example a cluster's, mounted here.

    Tasks are the directories that hold artifacts, `<task>/<artifact>` below the root, in the order
    in which their artifacts were written; there are no edges.

    Raises:
        PipelineError: The root is not a directory.
    """
    if not root.is_dir():
        raise PipelineError(f"{root} is not a directory; give the local path of the artifact root")
    findings = Findings()
    outputs: dict[str, dict[str, str]] = {}
    places = sorted({p.parent for n in KINDS for p in root.rglob(n)}, key=_written)
    for place in places:
        parts = place.relative_to(root).parts
        task = "/".join(parts[:-1]) or place.name
        outputs.setdefault(task, {})[place.name] = place.resolve().as_uri()
        findings.read(place, task, _stage(parts))
    tasks = [
        TaskRecord(
            path=path, display_name=path.rsplit("/", 1)[-1], kind="container", state="SUCCEEDED",
            artifacts=artifacts,
        )
        for path, artifacts in outputs.items()
    ]  # fmt: skip
    record = CollectedRun(
        run_id=run_id or root.name, name=name or root.name, state=state, started_at=started_at,
        finished_at=finished_at, error=error, tasks=tasks,
        notes=["tasks are told by their artifacts alone: there are no times and no edges"],
    )  # fmt: skip
    return _finish(record, findings)


def write_report(run_dir: Path, out: Path) -> Path:
    """Collect, render and write the page atomically; return `out`."""
    write_text(out, render_report(collect(run_dir)))
    return out


def _finish(record: CollectedRun, findings: Findings) -> CollectedRun:
    record = findings.fill(record)
    if record.recipe:
        record.recipe_digest = digest_of(record.recipe)
    return record


def _task(state: TaskState) -> TaskRecord:
    cpu = [a.cpu_seconds for a in state.attempts if a.cpu_seconds is not None]
    peak = [a.peak_rss_bytes for a in state.attempts if a.peak_rss_bytes is not None]
    return TaskRecord(
        path=state.path,
        display_name=state.display_name or state.name,
        parent=state.parent or None,
        kind=state.kind,
        state=_state(state.state),
        depends_on=list(state.depends_on),
        started_at=state.started_at,
        finished_at=state.finished_at,
        attempts=len(state.attempts),
        cache_hit=bool(state.cache_hit),
        cpu_seconds=sum(cpu) if cpu else None,
        peak_memory_bytes=max(peak) if peak else None,
        error=state.error,
        artifacts=_uris(state.outputs),
    )


def _state(name: str) -> TaskStateName:
    known: dict[str, TaskStateName] = {
        "RUNNING": "RUNNING", "SUCCEEDED": "SUCCEEDED", "SKIPPED": "SKIPPED", "FAILED": "FAILED",
        "CANCELING": "CANCELING", "CANCELED": "CANCELED",
    }  # fmt: skip
    return known.get(name, "PENDING")


def _attempts(state: TaskState) -> list[AttemptRecord]:
    return [
        AttemptRecord(number=a.number, started_at=a.started_at, finished_at=a.finished_at,
                      error=a.error, log=a.log_path)
        for a in state.attempts
    ]  # fmt: skip


def _uris(outputs: dict[str, Any]) -> dict[str, str]:
    """URI of every output artifact; members of a list are numbered."""
    found: dict[str, str] = {}
    for name, entries in (outputs.get("artifacts") or {}).items():
        several = entries if isinstance(entries, list) else [entries]
        uris = [e["uri"] for e in several if isinstance(e, dict) and e.get("uri")]
        for number, uri in enumerate(uris):
            found[name if len(uris) == 1 else f"{name}[{number}]"] = uri
    return found


def _places(state: TaskState, run_dir: Path) -> list[tuple[str, bool]]:
    """What to read for a task, and whether it may be missing without a word.

    A task that did not succeed has no recorded outputs, yet a blocked gate has written its verdict
    and an interrupted stage its metrics: they lie in the directory of the last attempt. Metrics
    artifacts of KFP are metadata; they often have no file.
    """
    entries = [e for es in (state.outputs.get("artifacts") or {}).values()
               for e in (es if isinstance(es, list) else [es]) if isinstance(e, dict)]  # fmt: skip
    known = [(e["uri"], "Metrics" in str(e.get("type"))) for e in entries if e.get("uri")]
    if known or not state.attempts or state.state == "SUCCEEDED":
        return known
    directory = run_dir / state.attempts[-1].directory
    return [(str(p), True) for p in sorted({p.parent for n in KINDS for p in directory.rglob(n)})]


def _read(
    findings: Findings, uri: str, task: str, stage: str, run_dir: Path, *, optional: bool
) -> None:
    split = urlsplit(uri)
    if split.scheme not in ("", "file"):
        findings.notes.append(f"{task}: {uri} is not on this machine and was not read")
        return
    plain = run_dir / uri.removeprefix("file://")
    # The executor writes paths into URIs as they are; others quote them.
    place = plain if plain.exists() else run_dir / unquote(split.path)
    if place.exists() or not optional:
        findings.read(place, task, stage)


def _loose(findings: Findings, run_dir: Path) -> None:
    """Recipe and environment may lie beside the state instead of in an artifact."""
    for name in ("recipe.json", "environment.json"):
        if (run_dir / name).is_file():
            findings.read(run_dir / name, "run", "run")


def _written(place: Path) -> tuple[float, str]:
    return os.stat(place).st_mtime, str(place)


def _stage(parts: tuple[str, ...]) -> str:
    return parts[-3] if len(parts) > 2 else parts[-2] if len(parts) > 1 else "run"
