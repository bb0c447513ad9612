"""The run's memory: `state.sqlite`, with the state of every task and an append-only event log.

WAL mode: one executor writes, any number of processes read while it does. A state change and the
event that reports it are one transaction, so a follower never sees one without the other.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from longstride.errors import PipelineError
from longstride.runner.state import Attempt, Event, JsonObject, TaskState

STATE_FILE = "state.sqlite"

_SCHEMA = """
CREATE TABLE IF NOT EXISTS run (key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS tasks (
    path TEXT PRIMARY KEY, seq INTEGER NOT NULL, name TEXT NOT NULL, display_name TEXT NOT NULL,
    component TEXT NOT NULL, kind TEXT NOT NULL, parent TEXT NOT NULL, state TEXT NOT NULL,
    started_at REAL, finished_at REAL, cache_hit INTEGER, cache_reason TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT '', error TEXT, inputs TEXT NOT NULL DEFAULT '{}',
    outputs TEXT NOT NULL DEFAULT '{}', depends_on TEXT NOT NULL DEFAULT '[]'
);
CREATE TABLE IF NOT EXISTS attempts (
    task_path TEXT NOT NULL, number INTEGER NOT NULL, pid INTEGER, started_at REAL NOT NULL,
    finished_at REAL, exit_code INTEGER, error TEXT, log_path TEXT NOT NULL,
    directory TEXT NOT NULL, cpu_seconds REAL, peak_rss_bytes INTEGER,
    PRIMARY KEY (task_path, number)
);
CREATE TABLE IF NOT EXISTS events (
    id INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, task_path TEXT NOT NULL,
    kind TEXT NOT NULL, payload TEXT NOT NULL
);
CREATE TRIGGER IF NOT EXISTS events_are_never_changed BEFORE UPDATE ON events
BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END;
CREATE TRIGGER IF NOT EXISTS events_are_never_removed BEFORE DELETE ON events
BEGIN SELECT RAISE(ABORT, 'the event log is append-only'); END;
"""

_TASK_COLUMNS = (
    "state",
    "started_at",
    "finished_at",
    "cache_hit",
    "cache_reason",
    "reason",
    "error",
    "inputs",
    "outputs",
)
_PLAIN_COLUMNS = (
    "path",
    "name",
    "display_name",
    "component",
    "kind",
    "parent",
    "state",
    "started_at",
    "finished_at",
    "cache_reason",
    "reason",
    "error",
)
_READ_COLUMNS = (*_PLAIN_COLUMNS, "cache_hit", "inputs", "outputs", "depends_on")
_ATTEMPT_COLUMNS = (
    "number",
    "pid",
    "started_at",
    "finished_at",
    "exit_code",
    "error",
    "log_path",
    "directory",
    "cpu_seconds",
    "peak_rss_bytes",
)


def _dump(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value


def _create(path: Path) -> None:
    """Put an empty database in place at once, so that a reader never finds one without tables."""
    if path.exists():
        return
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with closing(sqlite3.connect(partial)) as connection:
        connection.executescript(_SCHEMA)
    partial.rename(path)


class EventLog:
    """The writing side. Used by one thread of one executor."""

    def __init__(self, run_dir: Path, listener: Callable[[Event], None] | None = None) -> None:
        _create(run_dir / STATE_FILE)
        self._connection = sqlite3.connect(run_dir / STATE_FILE, isolation_level=None, timeout=30.0)
        self._connection.execute("PRAGMA journal_mode=WAL")
        self._connection.execute("PRAGMA synchronous=NORMAL")
        self._listener = listener
        self._pending: list[Event] = []
        self._depth = 0
        row = self._connection.execute("SELECT COALESCE(MAX(seq), 0) FROM tasks").fetchone()
        self._sequence = int(row[0])

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Group changes; listeners hear of them once they are on disk."""
        if self._depth == 0:
            self._connection.execute("BEGIN IMMEDIATE")
        self._depth += 1
        try:
            yield
        except BaseException:
            self._depth -= 1
            if self._depth == 0:
                self._connection.execute("ROLLBACK")
                self._pending.clear()
            raise
        self._depth -= 1
        if self._depth == 0:
            self._connection.execute("COMMIT")
            events, self._pending = self._pending, []
            for event in events:
                if self._listener is not None:
                    self._listener(event)

    def event(self, kind: str, task_path: str = "", payload: JsonObject | None = None) -> None:
        """Append one event."""
        with self.transaction():
            now, body = time.time(), payload or {}
            cursor = self._connection.execute(
                "INSERT INTO events (time, task_path, kind, payload) VALUES (?, ?, ?, ?)",
                (now, task_path, kind, json.dumps(body)),
            )
            self._pending.append(Event(int(cursor.lastrowid or 0), now, task_path, kind, body))

    def set_run(self, **values: Any) -> None:
        """Set keys of the run record."""
        with self.transaction():
            self._connection.executemany(
                "INSERT OR REPLACE INTO run (key, value) VALUES (?, ?)",
                [(key, json.dumps(value)) for key, value in values.items()],
            )

    def add_task(self, fixed: dict[str, str], depends_on: list[str]) -> None:
        """Make a task known as PENDING; a task that is known already keeps its record."""
        with self.transaction():
            self._sequence += 1
            self._connection.execute(
                "INSERT OR IGNORE INTO tasks (path, seq, name, display_name, component, kind,"
                " parent, state, depends_on) VALUES (?, ?, ?, ?, ?, ?, ?, 'PENDING', ?)",
                (
                    fixed["path"],
                    self._sequence,
                    fixed["name"],
                    fixed["display_name"],
                    fixed["component"],
                    fixed["kind"],
                    fixed["parent"],
                    json.dumps(depends_on),
                ),
            )

    def update_task(self, path: str, **changes: Any) -> None:
        """Change columns of a task; a change of state is reported as a `task` event."""
        unknown = set(changes) - set(_TASK_COLUMNS)
        if unknown:
            raise AssertionError(f"no such task columns: {sorted(unknown)}")
        with self.transaction():
            columns = ", ".join(f"{name} = ?" for name in changes)
            values = [_dump(value) for value in changes.values()]
            self._connection.execute(f"UPDATE tasks SET {columns} WHERE path = ?", (*values, path))
            if "state" in changes:
                shown = ("state", "reason", "error", "cache_hit", "cache_reason")
                self.event("task", path, {k: changes[k] for k in shown if k in changes})

    def start_attempt(self, path: str, attempt: Attempt) -> None:
        """Record that a process started."""
        with self.transaction():
            marks = ", ".join("?" for _ in range(len(_ATTEMPT_COLUMNS) + 1))
            values = [getattr(attempt, name) for name in _ATTEMPT_COLUMNS]
            self._connection.execute(
                f"INSERT INTO attempts (task_path, {', '.join(_ATTEMPT_COLUMNS)}) VALUES ({marks})",
                (path, *values),
            )
            self.event("attempt_started", path, {"number": attempt.number, "log": attempt.log_path})

    def update_attempt(self, path: str, number: int, **changes: Any) -> None:
        """Change columns of an attempt; its end is reported as an `attempt_finished` event."""
        with self.transaction():
            columns = ", ".join(f"{name} = ?" for name in changes)
            self._connection.execute(
                f"UPDATE attempts SET {columns} WHERE task_path = ? AND number = ?",
                (*changes.values(), path, number),
            )
            if "finished_at" in changes:
                shown = ("exit_code", "error", "cpu_seconds", "peak_rss_bytes")
                payload = {"number": number, **{k: changes[k] for k in shown if k in changes}}
                self.event("attempt_finished", path, payload)

    def close(self) -> None:
        """Close the database."""
        self._connection.close()


def _connect(run_dir: Path) -> sqlite3.Connection:
    path = run_dir / STATE_FILE
    if not path.is_file():
        raise PipelineError(f"{run_dir} holds no run: {STATE_FILE} is missing")
    return sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro", uri=True, timeout=30.0)


def _attempts(connection: sqlite3.Connection) -> dict[str, list[Attempt]]:
    found: dict[str, list[Attempt]] = {}
    query = f"SELECT task_path, {', '.join(_ATTEMPT_COLUMNS)} FROM attempts ORDER BY number"
    for path, *columns in connection.execute(query):
        found.setdefault(path, []).append(Attempt(*columns))
    return found


def read_run_record(run_dir: Path) -> JsonObject:
    """The keys of the run record.

    Raises:
        PipelineError: the directory holds no run.
    """
    with closing(_connect(run_dir)) as connection:
        rows = connection.execute("SELECT key, value FROM run").fetchall()
    return {key: json.loads(value) for key, value in rows}


def _task_state(row: JsonObject, attempts: dict[str, list[Attempt]]) -> TaskState:
    return TaskState(
        **{name: row[name] for name in _PLAIN_COLUMNS},
        attempts=attempts.get(row["path"], []),
        cache_hit=None if row["cache_hit"] is None else bool(row["cache_hit"]),
        inputs=json.loads(row["inputs"]),
        outputs=json.loads(row["outputs"]),
        depends_on=json.loads(row["depends_on"]),
    )


def read_tasks(run_dir: Path) -> list[TaskState]:
    """All tasks of a run in the order in which they became known, attempts included.

    Raises:
        PipelineError: the directory holds no run.
    """
    with closing(_connect(run_dir)) as connection:
        connection.execute("BEGIN")  # one snapshot for both tables
        attempts = _attempts(connection)
        rows = connection.execute(
            f"SELECT {', '.join(_READ_COLUMNS)} FROM tasks ORDER BY seq"
        ).fetchall()
    return [_task_state(dict(zip(_READ_COLUMNS, row, strict=True)), attempts) for row in rows]


def read_events(run_dir: Path, after: int = 0) -> list[Event]:
    """Events with an id above `after`, oldest first; safe while the run is going on.

    Raises:
        PipelineError: the directory holds no run.
    """
    with closing(_connect(run_dir)) as connection:
        rows = connection.execute(
            "SELECT id, time, task_path, kind, payload FROM events WHERE id > ? ORDER BY id",
            (after,),
        ).fetchall()
    return [Event(row[0], row[1], row[2], row[3], json.loads(row[4])) for row in rows]
