"""The one protocol of everything that judges an answer: a score, or why there is none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from schemas.rows import RLPrompt

NotJudgedReason = Literal[
    "timeout", "died", "error", "unavailable", "budget", "malformed", "disagreement"
]
"""`timeout` and `died`: the verifier was killed or fell over; `error`: it raised; `unavailable`:
its sandbox or endpoint cannot be reached; `budget`: no calls are left; `malformed`: a model's
verdict cannot be read; `disagreement`: repeated judgments of a model differ."""


@dataclass(frozen=True)
class Submission:
    """One sampled answer to judge."""

    prompt: RLPrompt
    """The problem."""
    answer: str
    """What follows the thinking, stripped: what is judged."""
    text: str = ""
    """The whole decoded sample; what a format rule looks at."""
    tokens: int = 0
    """Sampled tokens, for what watches length."""


@dataclass(frozen=True)
class Score:
    """A judgment."""

    value: float
    """Quality from 0 to 1."""
    correct: bool
    """Whether it counts as right."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """What the value is made of, for example the share of tests passed."""


@dataclass(frozen=True)
class NotJudged:
    """No judgment: never reward 0."""

    reason: NotJudgedReason
    """Kind of failure, for counting."""
    detail: str
    """What happened, in one sentence, without the answer's text."""


Judgment = Score | NotJudged


class Judge(Protocol):
    """Judges answers; a failure of one submission never touches another."""

    def judge(self, submission: Submission) -> Judgment:
        """Judge one answer."""
        ...

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judgment]:
        """Judge many, in their order; the judge's own limits bound the concurrency."""
        ...
