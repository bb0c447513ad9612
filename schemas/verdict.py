"""What a gate says: every check with its observed value, threshold, severity and offenders."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Contract

Severity = Literal["block", "warn", "info"]
Edge = Literal["E1", "E2", "E3", "E4", "E5", "E6", "E7", "E8"]

EDGE_TITLES: dict[str, str] = {
    "E1": "corpus -> continual pretraining",
    "E2": "packed rows -> context extension",
    "E3": "chat examples -> SFT",
    "E4": "RL prompts -> RL",
    "E5": "rollouts -> next round",
    "E6": "length expansion",
    "E7": "checkpoint -> next stage",
    "E8": "evaluation -> report",
}


class Check(Contract):
    """One measured fact against one threshold."""

    name: str = Field(min_length=1)
    """Stable name, unique within the edge."""
    description: str
    """What is measured and why it matters, in one sentence."""
    severity: Severity
    """`block` stops the run, `warn` is shown, `info` is recorded."""
    passed: bool
    """Whether the observed value is within the threshold."""
    observed: float | int | str | bool | None
    """The measured value."""
    threshold: str
    """The rule as text, for example `<= 0.01`."""
    offenders: list[str] = Field(default_factory=list)
    """Up to 20 row ids that break the rule; never full text."""
    origin: str = ""
    """Where the threshold comes from."""


class ColumnProfile(Contract):
    """How the finite values of a measured column lie."""

    count: int = Field(ge=0)
    """Rows with a finite value."""
    low: float
    """Smallest value."""
    high: float
    """Largest value."""
    mean: float
    """Mean."""
    p01: float
    """1st percentile."""
    p50: float
    """Median."""
    p99: float
    """99th percentile."""
    histogram: list[int]
    """Rows in equal bins from `low` to `high`."""


class Profile(Contract):
    """What was measured of a subject in numbers; the next run's drift is told against it."""

    edge: Edge
    """Which edge of the pipeline was guarded."""
    stage: str
    """Which stage of the run."""
    recipe: str
    """Name of the recipe."""
    subject_digest: str
    """Digest of the measured artifact."""
    facts: dict[str, float]
    """Finite numbers of the whole by name; `rows`, `<fact>` and `<column>/mean` and the like."""
    columns: dict[str, ColumnProfile] = Field(default_factory=dict)
    """Measured columns with bounds."""


class Override(Contract):
    """An operator's decision to let a blocked gate pass."""

    operator: str = Field(min_length=1)
    """Who decided."""
    reason: str = Field(min_length=1)
    """Why."""


class Verdict(Contract):
    """The result of a quality gate."""

    edge: Edge
    """Which edge of the pipeline was guarded."""
    stage: str
    """Which stage of the run, for example `extend-2`."""
    passed: bool
    """Whether the run may go on."""
    checks: list[Check]
    """Every check, passed or not."""
    rows: int = Field(ge=0)
    """Rows measured."""
    suite_digest: str
    """Digest of the suite with its thresholds."""
    subject_digest: str
    """Digest of the measured artifact."""
    note: str = ""
    """For people, for example that a round was passed through."""
    override: Override | None = None
    """Set when an operator let a blocked gate pass."""
    baseline: str = ""
    """Digest of the subject whose blessed profile drift was told against; empty: there is none."""

    @property
    def blocked_by(self) -> list[Check]:
        """Failed checks of severity `block`."""
        return [c for c in self.checks if c.severity == "block" and not c.passed]
