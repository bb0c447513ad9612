"""A run in a store: pushed while it goes on or later, pulled to go on elsewhere.

Below `runs/<name>/` of the store: `attempts/<task>/attempt-<n>`, one publication a finished
attempt; `imported/<id>`, artifacts that a task took from another run's cache; `states/<n>`, the
run's record and database, of which the newest counts. An attempt is published before a state that
knows of it, so that a state never names what is not there.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import tempfile
import uuid
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longstride.errors import ConcurrentWrite, DataError, PipelineError
from longstride.runner.eventlog import STATE_FILE, read_tasks
from longstride.runner.executor import LOCK_FILE, STOP_FILE
from longstride.runner.state import TaskState
from longstride.runner.values import Artifact
from longstride.store.files import read_json, write_json
from longstride.store.objects import ObjectStore
from schemas.base import Contract

_TASKS = "tasks"
_IMPORTED = "imported"
_BRANCH = ".store.json"
_NOT_STATE = (
    STATE_FILE, f"{STATE_FILE}-wal", f"{STATE_FILE}-shm", LOCK_FILE, STOP_FILE, "workspace",
    "zygotes",
)  # fmt: skip


class _Branch(Contract):
    """Which writer a folder is, and the state it went on from."""

    writer: str
    known: int


@dataclass(frozen=True)
class Transfer:
    """What a push or pull moved."""

    name: str
    """The run's name in the store."""
    attempts: int
    """Attempts of tasks."""
    imported: int
    """Artifacts that came from other runs."""
    tasks: int
    """Tasks known in the state."""


def push_run(run_dir: Path, store: ObjectStore) -> Transfer:
    """Publish what a run has finished so far; again later, only what is new is sent.

    Raises:
        PipelineError: The folder holds no run.
        ConcurrentWrite: Another machine pushes a run of this name that went another way.
        StoreError: Storage failed.
    """
    run_dir = run_dir.resolve()
    base = f"runs/{run_dir.name}"
    branch = _branch_of(run_dir)
    older = store.names(f"{base}/states")
    _refuse_another_branch(branch, older, store)
    with tempfile.TemporaryDirectory() as folder:
        snapshot = Path(folder) / STATE_FILE
        _copy_database(run_dir / STATE_FILE, snapshot)
        tasks = read_tasks(Path(folder))
        attempts = _push_attempts(run_dir, base, tasks, store)
        imported = _push_imported(run_dir, base, tasks, store)
        files = {
            path.relative_to(run_dir).as_posix(): path
            for path in sorted(run_dir.rglob("*"))
            if _belongs_to_state(path, run_dir)
        }
        number = 1 + max(map(_number, older), default=0)
        facts = {"run_dir": str(run_dir), "writer": branch.writer}
        store.publish_files(f"{base}/states/{number:09d}", {**files, STATE_FILE: snapshot}, facts)
        for name in older:
            store.withdraw(name)
    return Transfer(run_dir.name, attempts, imported, len(tasks))


def pull_run(
    store: ObjectStore, name: str, runs: Path, tell: Callable[[str], None] = lambda text: None
) -> Path:
    """Bring a run here, complete or not at all, with its paths as they are here.

    Raises:
        DataError: The store has no such run, something of it is damaged, or the folder exists.
        StoreError: Storage failed.
    """
    target = runs.resolve() / name
    if target.exists():
        raise DataError(f"{target} exists already; remove it, or pull into another --runs folder")
    base = f"runs/{name}"
    states = store.names(f"{base}/states")
    if not states:
        known = sorted({found.split("/")[1] for found in store.names("runs")})
        raise DataError(f"{store.location.uri} has no run {name!r}; it has {known or 'none'}")
    partial = target.with_name(f".{name}.pulling")
    partial.mkdir(parents=True, exist_ok=True)
    state = store.fetch(states[-1], partial)
    moved = {state.facts["run_dir"]: str(target)}
    for found in store.names(f"{base}/attempts"):
        tell(found.removeprefix(f"{base}/attempts/"))
        store.fetch(found, partial / _TASKS / found.removeprefix(f"{base}/attempts/"))
    for found in store.names(f"{base}/{_IMPORTED}"):
        place = found.removeprefix(f"{base}/")
        facts = store.fetch(found, partial / place).facts
        within = "" if facts["kind"] == "folder" else f"/{facts['file']}"
        moved[facts["path"]] = f"{target / place}{within}"
    _rewrite_paths(partial / STATE_FILE, moved)
    write_json(partial / _BRANCH, _Branch(writer=uuid.uuid4().hex, known=_number(states[-1])))
    partial.rename(target)
    return target


def _number(state: str) -> int:
    return int(state.rsplit("/", 1)[1])


def _branch_of(run_dir: Path) -> _Branch:
    """What this folder knows of the store's states; made up when it was never pushed."""
    path = run_dir / _BRANCH
    if not path.is_file():
        if not (run_dir / STATE_FILE).is_file():
            raise PipelineError(f"{run_dir} holds no run: {STATE_FILE} is missing")
        write_json(path, _Branch(writer=uuid.uuid4().hex, known=0))
    return read_json(path, _Branch)


def _refuse_another_branch(branch: _Branch, states: list[str], store: ObjectStore) -> None:
    """Refuse to go on over a state that neither this folder wrote nor went on from."""
    if not states or _number(states[-1]) <= branch.known:
        return
    newest = store.find(states[-1])
    if newest is not None and newest.facts.get("writer") != branch.writer:
        raise ConcurrentWrite(
            f"{states[-1]} in {store.location.uri} was published by {newest.publisher}, which went "
            "on with this run from another folder; stop one of the two, and pull the other one's "
            "state under another --runs folder if it is the one to go on with"
        )


def _push_attempts(run_dir: Path, base: str, tasks: list[TaskState], store: ObjectStore) -> int:
    there = set(store.names(f"{base}/attempts"))
    count = 0
    for task in tasks:
        for attempt in task.attempts:
            directory = Path(attempt.directory)
            if attempt.finished_at is None or not directory.is_dir():
                continue
            count += 1
            name = f"{base}/attempts/{directory.relative_to(run_dir / _TASKS).as_posix()}"
            if name not in there:
                store.publish(name, directory)
    return count


def _push_imported(run_dir: Path, base: str, tasks: list[TaskState], store: ObjectStore) -> int:
    there = set(store.names(f"{base}/{_IMPORTED}"))
    paths = {
        artifact.local_path
        for task in tasks
        for group in task.outputs.get("artifacts", {}).values()
        for artifact in map(Artifact.from_json, group)
        if artifact.local_path is not None
        and artifact.local_path.exists()
        and not artifact.local_path.is_relative_to(run_dir)
    }
    for path in sorted(paths):
        name = f"{base}/{_IMPORTED}/{hashlib.sha256(str(path).encode()).hexdigest()[:16]}"
        if name in there:
            continue
        if path.is_dir():
            store.publish(name, path, {"path": str(path), "kind": "folder"})
        else:
            facts = {"path": str(path), "kind": "file", "file": path.name}
            store.publish_files(name, {path.name: path}, facts)
    return len(paths)


def _belongs_to_state(path: Path, run_dir: Path) -> bool:
    parts = path.relative_to(run_dir).parts
    return (
        path.is_file()
        and parts[0] not in (_TASKS, _IMPORTED, *_NOT_STATE)
        and not any(part.startswith(".") for part in parts)
    )


def _copy_database(source: Path, target: Path) -> None:
    """A consistent copy of the database, also while an executor writes to it."""
    if not source.is_file():
        raise PipelineError(f"{source.parent} holds no run: {STATE_FILE} is missing")
    with (
        closing(sqlite3.connect(f"{source.as_uri()}?mode=ro", uri=True, timeout=30.0)) as reading,
        closing(sqlite3.connect(target)) as writing,
    ):
        reading.backup(writing)
        writing.execute("PRAGMA journal_mode=DELETE")


def _rewrite_paths(database: Path, moved: dict[str, str]) -> None:
    """Let the state name files where they are now. Events keep the paths of their time."""
    with closing(sqlite3.connect(database)) as connection:
        for key, value in connection.execute("SELECT key, value FROM run").fetchall():
            connection.execute(
                "UPDATE run SET value = ? WHERE key = ?", (_moved(value, moved), key)
            )
        query = "SELECT path, inputs, outputs FROM tasks"
        for path, inputs, outputs in connection.execute(query).fetchall():
            connection.execute(
                "UPDATE tasks SET inputs = ?, outputs = ? WHERE path = ?",
                (_moved(inputs, moved), _moved(outputs, moved), path),
            )
        query = "SELECT task_path, number, log_path, directory FROM attempts"
        for path, number, log, directory in connection.execute(query).fetchall():
            connection.execute(
                "UPDATE attempts SET log_path = ?, directory = ?"
                " WHERE task_path = ? AND number = ?",
                (_moved_text(log, moved), _moved_text(directory, moved), path, number),
            )
        connection.commit()


def _moved(text: str, moved: dict[str, str]) -> str:
    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: walk(item) for key, item in value.items()}
        if isinstance(value, list):
            return [walk(item) for item in value]
        return _moved_text(value, moved) if isinstance(value, str) else value

    return json.dumps(walk(json.loads(text)))


def _moved_text(text: str, moved: dict[str, str]) -> str:
    scheme = "file://" if text.startswith("file://") else ""
    path = text.removeprefix("file://")
    for old, new in moved.items():
        if path == old or path.startswith(f"{old}/"):
            return f"{scheme}{new}{path[len(old) :]}"
    return text
