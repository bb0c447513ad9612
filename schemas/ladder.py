"""Staged length expansion: the windows, the gate's thresholds, and the state that flows along."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Contract

LadderDecision = Literal["start", "expand", "hold", "remedy", "halt", "complete", "passed_through"]
LadderStatus = Literal["active", "complete", "halted"]


class LadderConfig(Contract):
    """Windows and the rule that decides when the next one opens."""

    rungs: list[int] = Field(default_factory=lambda: [40, 48, 56, 64, 72, 80], min_length=1)
    """Window ladder in units of `scale` tokens (the report's 40K to 80K)."""
    scale: int = Field(default=1, ge=1)
    """Tokens per unit of `rungs`; 1000 gives the report's windows."""
    p99_share: float = Field(default=0.9, gt=0.0, le=1.0)
    """Expand only when p99 of the output length is at least this share of the window."""
    perplexity_relative_change: float = Field(default=0.15, gt=0.0)
    """Perplexity has converged when its relative change over the round is at most this."""
    maximum_truncated_share: float = Field(default=0.5, gt=0.0, le=1.0)
    """More truncated samples than this hold the window: most answers were never finished."""
    maximum_repetition_share: float = Field(default=0.05, ge=0.0, le=1.0)
    """More samples stopped for repetition than this call for a remedy."""
    collapse_perplexity_ratio: float = Field(default=1.5, gt=1.0)
    """Pattern collapse: tail perplexity this many times the perplexity of the first half."""
    collapse_length_ratio: float = Field(default=1.5, gt=1.0)
    """Pattern collapse: p99 length of wrong answers this many times that of right ones."""
    remedy_cap_factor: float = Field(default=0.5, gt=0.0, le=1.0)
    """A remedy multiplies (is_weight_cap - 1) by this."""
    remedy_grad_clip_factor: float = Field(default=0.5, gt=0.0, le=1.0)
    """A remedy multiplies the gradient clip by this."""
    maximum_remedies: int = Field(default=2, ge=0)
    """After so many remedies in a row that did not help, the ladder halts."""

    @model_validator(mode="after")
    def _rungs_ascend(self) -> Self:
        if self.rungs[0] < 1 or any(b <= a for a, b in pairwise(self.rungs)):
            raise ValueError(
                f"rungs must be positive and strictly ascending, got {self.rungs}; sort them and "
                "drop repeats"
            )
        return self

    @property
    def windows(self) -> list[int]:
        """Windows in tokens."""
        return [rung * self.scale for rung in self.rungs]


class RoundFacts(Contract):
    """What one round measured; the only thing the expansion gate looks at."""

    window: int = Field(ge=1)
    """Output window of the round in tokens."""
    perplexity_first: float = Field(gt=0.0)
    """Perplexity of generated sequences in the first batch of the round."""
    perplexity_last: float = Field(gt=0.0)
    """Perplexity of generated sequences in the last batch of the round."""
    perplexity_head: float = Field(gt=0.0)
    """Perplexity over the first half of positions, last batch."""
    perplexity_tail: float = Field(gt=0.0)
    """Perplexity over the last quarter of positions, last batch."""
    length_p50: float = Field(ge=0.0)
    """Median output length, last batch."""
    length_p99: float = Field(ge=0.0)
    """99th percentile of output length, last batch."""
    length_p99_correct: float | None = None
    """The same over right answers; null when there are none."""
    length_p99_wrong: float | None = None
    """The same over wrong answers; null when there are none."""
    truncated_share: float = Field(ge=0.0, le=1.0)
    """Samples that ended at the window."""
    repetition_share: float = Field(ge=0.0, le=1.0)
    """Samples that the repetition rule stopped."""
    reward_mean: float
    """Mean reward of judged samples."""
    samples: int = Field(ge=1)
    """Samples measured."""


class LadderEntry(Contract):
    """One decision of the gate."""

    round: int = Field(ge=1)
    """Round number, from 1."""
    window: int = Field(ge=1)
    """Window the round ran at."""
    decision: LadderDecision
    """What the gate decided."""
    reasons: list[str]
    """One sentence a rule, with the measured value and the threshold."""
    facts: RoundFacts | None = None
    """What was measured; null for a round that was passed through."""


class LadderState(Contract):
    """Flows round -> gate -> next round."""

    status: LadderStatus = "active"
    """Whether further rounds train."""
    window: int = Field(ge=1)
    """Window of the next round in tokens."""
    is_weight_cap: float | None = Field(default=None, ge=1.0)
    """Cap of the importance weight for the next round; null for algorithms without one."""
    grad_clip: float = Field(gt=0.0)
    """Gradient clip of the next round."""
    remedies: int = Field(default=0, ge=0)
    """Remedies in a row."""
    history: list[LadderEntry] = Field(default_factory=list)
    """Every decision so far."""
