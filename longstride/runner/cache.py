"""Content-addressed cache of finished tasks, with a reason for every hit and every miss.

A key covers the component (source, function, image, declared environment, output interface), the
input parameter values, and the input artifacts by content. It does not cover where an input lies,
which run made it, secrets, or the environment that the caller adds. An entry points at the outputs
of the run that made them; a hit counts only if those outputs are still there with the same content.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longstride.runner.digests import Digester, FileRecord
from longstride.runner.forkserver import PRELOAD_VARIABLE
from longstride.runner.ir import Component, Executor, TaskSpec
from longstride.runner.values import Artifact, JsonObject, Values, canonical

_SCHEMA = """
CREATE TABLE IF NOT EXISTS entries (
    key TEXT PRIMARY KEY, identity TEXT NOT NULL, parts TEXT NOT NULL, outputs TEXT NOT NULL,
    manifests TEXT NOT NULL, origin TEXT NOT NULL, created_at REAL NOT NULL
);
CREATE INDEX IF NOT EXISTS entries_by_identity ON entries (identity, created_at);
"""
_NEIGHBOURS = 20


@dataclass(frozen=True)
class CacheKey:
    """A key and the named parts it was made from."""

    digest: str
    identity: str
    parts: dict[str, str]


@dataclass(frozen=True)
class Lookup:
    """What the cache says about a key. `outputs` is None on a miss."""

    outputs: Values | None
    reason: str


def _short(value: Any) -> str:
    return hashlib.sha256(canonical(value).encode()).hexdigest()


def _artifact_part(group: list[Artifact], digester: Digester) -> str:
    parts = []
    for artifact in group:
        path = artifact.local_path
        content = artifact.uri if path is None else digester.artifact(path)
        parts.append([content, artifact.schema_title, artifact.metadata])
    return _short(parts)


def make_key(
    identity: str,
    spec: TaskSpec,
    component: Component,
    executor: Executor,
    inputs: Values,
    digester: Digester,
) -> CacheKey:
    """The cache key of a task with resolved inputs."""
    outputs = {
        "parameters": {name: d.type for name, d in component.output_parameters.items()},
        "artifacts": {name: d.schema_title for name, d in component.output_artifacts.items()},
    }
    code = [executor.function, executor.source, executor.image]
    parts = {
        "component source": _short(code),
        "environment": _short({n: v for n, v in executor.env.items() if n != PRELOAD_VARIABLE}),
        "output interface": _short(outputs),
    }
    if spec.cache_key:
        parts["explicit cache key"] = spec.cache_key
    else:
        for name, value in inputs.parameters.items():
            parts[f"parameter {name}"] = _short(value)
        for name, group in inputs.artifacts.items():
            parts[f"input artifact {name}"] = _artifact_part(group, digester)
    return CacheKey(_short(parts), identity, parts)


def _difference(new: dict[str, str], old: dict[str, str]) -> list[str]:
    names = sorted(set(new) | set(old))
    return [name for name in names if new.get(name) != old.get(name)]


def _connect(path: Path) -> sqlite3.Connection:
    """Open the database; runs that start at the same moment take turns at creating it."""
    limit = time.monotonic() + 30.0
    while True:
        connection = sqlite3.connect(path, isolation_level=None, timeout=30.0)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            connection.executescript(_SCHEMA)
            return connection
        except sqlite3.OperationalError:  # switching to WAL does not wait for a lock
            connection.close()
            if time.monotonic() > limit:
                raise
            time.sleep(0.05)


class TaskCache:
    """The cache of one directory; several runs may use it at the same time."""

    def __init__(self, directory: Path, digester: Digester) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._connection = _connect(directory / "cache.sqlite")
        self._digester = digester

    def lookup(self, key: CacheKey) -> Lookup:
        """Find the outputs for a key, or the reason why there are none."""
        row = self._connection.execute(
            "SELECT outputs, manifests, origin FROM entries WHERE key = ?", (key.digest,)
        ).fetchone()
        if row is None:
            return Lookup(None, self._why_missing(key))
        outputs, manifests = Values.from_json(json.loads(row[0])), json.loads(row[1])
        broken = self._broken(outputs, manifests)
        if broken:
            return Lookup(None, f"miss: {broken} (made by {row[2]})")
        return Lookup(outputs, f"hit: same component and inputs as {row[2]}")

    def _why_missing(self, key: CacheKey) -> str:
        rows = self._connection.execute(
            "SELECT parts FROM entries WHERE identity = ? ORDER BY created_at DESC LIMIT ?",
            (key.identity, _NEIGHBOURS),
        ).fetchall()
        if not rows:
            return "miss: first time this task runs"
        changed = min((_difference(key.parts, json.loads(row[0])) for row in rows), key=len)
        return f"miss: changed since the nearest earlier run: {', '.join(changed)}"

    def _broken(self, outputs: Values, manifests: dict[str, list[list[FileRecord] | None]]) -> str:
        """Why recorded outputs cannot be used; "" when they can."""
        for name, group in outputs.artifacts.items():
            for artifact, recorded in zip(group, manifests[name], strict=True):
                path = artifact.local_path
                if path is None or recorded is None:
                    continue
                self._digester.remember(path, recorded)
                found = self._digester.records(path)
                if found is None:
                    return f"output {name} no longer exists"
                if [(r[0], r[3]) for r in found] != [(r[0], r[3]) for r in recorded]:
                    return f"output {name} changed after it was recorded"
        return ""

    def store(self, key: CacheKey, outputs: Values, origin: str) -> None:
        """Record the outputs of a finished task; one that was never written has no manifest."""
        manifests: JsonObject = {}
        for name, group in outputs.artifacts.items():
            manifests[name] = []
            for artifact in group:
                path = artifact.local_path
                manifests[name].append(None if path is None else self._digester.records(path))
        self._connection.execute(
            "INSERT OR REPLACE INTO entries VALUES (?, ?, ?, ?, ?, ?, ?)",
            (
                key.digest,
                key.identity,
                json.dumps(key.parts),
                json.dumps(outputs.to_json()),
                json.dumps(manifests),
                origin,
                time.time(),
            ),
        )

    def close(self) -> None:
        """Close the database."""
        self._connection.close()
