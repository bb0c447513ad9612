"""A run as the report and the console see it, whichever target executed it."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field

from schemas.audit import AuditRow
from schemas.base import Contract
from schemas.ladder import LadderState
from schemas.rows import EvalResult, EvalSample, Rollout
from schemas.verdict import Verdict

TaskStateName = Literal[
    "PENDING", "RUNNING", "SUCCEEDED", "SKIPPED", "FAILED", "CANCELING", "CANCELED"
]


class TaskRecord(Contract):
    """One task of the DAG."""

    path: str
    """Path of the task in the run, for example `root/round-1/cispo`."""
    display_name: str
    """Name for people."""
    parent: str | None = None
    """Path of the sub-pipeline it belongs to."""
    kind: str
    """container, dag, loop or importer."""
    state: TaskStateName
    """State."""
    depends_on: list[str] = Field(default_factory=list)
    """Paths of the tasks it waited for."""
    started_at: float | None = None
    """Unix seconds."""
    finished_at: float | None = None
    """Unix seconds."""
    attempts: int = 0
    """Attempts made."""
    cache_hit: bool = False
    """Whether outputs came from the cache."""
    cpu_seconds: float | None = None
    """CPU time of all attempts."""
    peak_memory_bytes: int | None = None
    """Peak resident memory of any attempt."""
    error: str | None = None
    """Error of the last attempt."""
    artifacts: dict[str, str] = Field(default_factory=dict)
    """Output artifacts: name -> URI."""


class MetricPoint(Contract):
    """One value of one series."""

    step: int
    """Step within the task."""
    name: str
    """Path of the metric, for example `rl/length/p99`."""
    value: float
    """Value."""


class TaskMetrics(Contract):
    """The metric series of one task."""

    task: str
    """Path of the task."""
    stage: str
    """Stage name, for example `pretrain` or `rl-round-1`."""
    points: list[MetricPoint]
    """All points in the order written."""


class Evaluation(Contract):
    """A benchmark with some of its samples."""

    result: EvalResult
    """Aggregates."""
    samples: list[EvalSample] = Field(default_factory=list)
    """A few samples for people."""


class RunRecord(Contract):
    """Everything the report shows."""

    run_id: str
    """Identifier."""
    name: str
    """Recipe name."""
    state: str
    """State of the run."""
    started_at: float | None = None
    """Unix seconds."""
    finished_at: float | None = None
    """Unix seconds; null while running."""
    error: str | None = None
    """First error of the run."""
    tasks: list[TaskRecord] = Field(default_factory=list)
    """All tasks."""
    verdicts: list[Verdict] = Field(default_factory=list)
    """Verdicts of the quality gates in order."""
    ladder: LadderState | None = None
    """Last ladder state with its history."""
    metrics: list[TaskMetrics] = Field(default_factory=list)
    """Metric series by task, in DAG order."""
    rollouts: dict[str, list[Rollout]] = Field(default_factory=dict)
    """Sample rollouts by round."""
    audit: dict[str, list[AuditRow]] = Field(default_factory=dict)
    """Audit of the updates by round."""
    tokens: dict[str, str] = Field(default_factory=dict)
    """Text of each token id that occurs in the sample rollouts."""
    evaluations: list[Evaluation] = Field(default_factory=list)
    """Benchmarks in order (before, after)."""
    recipe: dict[str, Any] = Field(default_factory=dict)
    """The resolved recipe."""
    recipe_digest: str = ""
    """Its digest."""
    code_digest: str = ""
    """Digest of the code that ran."""
    versions: dict[str, str] = Field(default_factory=dict)
    """Python and package versions."""
    machine: dict[str, str] = Field(default_factory=dict)
    """Cores, memory, accelerators."""
