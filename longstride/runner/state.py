"""What a run looks like from outside: runs, tasks, attempts and events as plain records."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

JsonObject = dict[str, Any]

PENDING = "PENDING"
RUNNING = "RUNNING"
SUCCEEDED = "SUCCEEDED"
SKIPPED = "SKIPPED"
FAILED = "FAILED"
CANCELING = "CANCELING"
CANCELED = "CANCELED"

FINAL_STATES = frozenset({SUCCEEDED, SKIPPED, FAILED, CANCELED})

TaskKind = Literal["container", "dag", "loop", "importer"]


@dataclass(frozen=True)
class Event:
    """One line of the append-only event log; `time` in unix seconds."""

    id: int
    time: float
    task_path: str
    kind: str
    payload: JsonObject


@dataclass(frozen=True)
class Attempt:
    """One process that tried to run a task. CPU time in seconds, memory in bytes."""

    number: int
    pid: int | None
    started_at: float
    finished_at: float | None
    exit_code: int | None
    error: str | None
    log_path: str
    directory: str
    cpu_seconds: float | None
    peak_rss_bytes: int | None


@dataclass(frozen=True)
class TaskState:
    """One node of the run: a task, a sub-pipeline, a loop or one iteration of it."""

    path: str
    name: str
    display_name: str
    component: str
    kind: TaskKind
    parent: str
    state: str
    started_at: float | None
    finished_at: float | None
    attempts: list[Attempt]
    cache_hit: bool | None
    cache_reason: str
    reason: str
    error: str | None
    inputs: JsonObject
    outputs: JsonObject
    depends_on: list[str]


@dataclass(frozen=True)
class RunState:
    """A run as a whole. `alive` tells whether an executor holds the run directory right now."""

    run_id: str
    run_name: str
    pipeline_name: str
    run_dir: str
    state: str
    error: str | None
    created_at: float
    started_at: float | None
    finished_at: float | None
    parameters: JsonObject
    outputs: JsonObject
    pid: int | None
    sessions: int
    alive: bool


@dataclass(frozen=True)
class RunResult:
    """How a run ended. `outputs` are the pipeline's own outputs (parameters and artifacts)."""

    state: str
    error: str | None
    outputs: JsonObject = field(default_factory=dict)
