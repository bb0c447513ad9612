"""Verifiers by name: what scores a kind of answer, and where it runs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from longstride.errors import DataError
from longstride.rewards import mathematics, reasoning, rules
from longstride.rewards.reasoning import FAILURES
from longstride.rewards.worker_main import Job
from longstride.rewards.workers import ACCEPTED
from schemas.rows import RLPrompt

REASONING_GYM = "reasoning_gym"
EXACT_MATCH = "exact_match"
CHOICE = "choice"
MATH = "math"
CODE = "code"
SOFTWARE_ENGINEERING = "software_engineering"

__all__ = ["ACCEPTED", "VERIFIERS", "Verifier", "accepts", "verifier_of"]


@dataclass(frozen=True)
class Verifier:
    """How a kind of answer is scored."""

    name: str
    """Name that prompts refer to."""
    version: Callable[[], str]
    """Version of what scores, for results that are compared later."""
    where: Literal["here", "process", "sandbox"]
    """A comparison of texts runs here, what may hang in a process that is killed then, and what
    runs a model's program in the sandbox."""
    rule: Callable[[RLPrompt, str], float] | None = None
    """(prompt, answer) -> score from 0 to 1, for `here`."""
    job: Callable[[RLPrompt, str], Job] | None = None
    """(prompt, answer) -> what a verifier process is asked, for `process`."""
    package: Callable[[RLPrompt], Job] | None = None
    """What such a process should load ahead for a prompt."""


def accepts(prompt: RLPrompt, answer: str) -> bool | None:
    """Whether the verifier accepts an answer that is not a model's; None when it could not judge.

    For references and for wrong answers made from them. Problems that reasoning-gym generated are
    scored in this process; the rest through a judge with default limits.

    Raises:
        DataError: No verifier has the prompt's verifier name.
    """
    verifier = verifier_of(prompt)
    if verifier.where == "here" and verifier.rule is not None:
        return verifier.rule(prompt, answer) >= ACCEPTED
    if verifier.name == REASONING_GYM:
        try:
            return reasoning.score(prompt.family, prompt.entry, answer) >= ACCEPTED
        except FAILURES:
            return None
    from longstride.rewards.judging import shared_judge
    from longstride.rewards.protocol import Score, Submission

    judgment = shared_judge().judge(Submission(prompt, answer))
    return judgment.correct if isinstance(judgment, Score) else None


def verifier_of(prompt: RLPrompt) -> Verifier:
    """The verifier that a prompt names.

    Raises:
        DataError: There is none of that name.
    """
    verifier = VERIFIERS.get(prompt.verifier)
    if verifier is None:
        raise DataError(
            f"prompt {prompt.id} names verifier {prompt.verifier!r}; known are {sorted(VERIFIERS)}"
        )
    return verifier


def _reasoning_job(prompt: RLPrompt, answer: str) -> Job:
    return {**_reasoning_package(prompt), "entry": prompt.entry, "answer": answer}


def _reasoning_package(prompt: RLPrompt) -> dict[str, Any]:
    return {"kind": REASONING_GYM, "family": prompt.family}


def _math_job(prompt: RLPrompt, answer: str) -> Job:
    # A longer answer is wrong whatever it is, and need not be sent.
    return {
        "kind": MATH,
        "reference": prompt.answer,
        "answer": answer[: mathematics.LONGEST_ANSWER + 1],
    }


VERIFIERS: dict[str, Verifier] = {
    verifier.name: verifier
    for verifier in (
        Verifier(
            REASONING_GYM, reasoning.version, "process",
            job=_reasoning_job, package=_reasoning_package,
        ),
        Verifier(
            MATH, mathematics.version, "process",
            job=_math_job, package=lambda prompt: {"kind": MATH},
        ),
        Verifier(EXACT_MATCH, lambda: "exact_match 1", "here", rule=rules.exact_match),
        Verifier(CHOICE, lambda: "choice 1", "here", rule=rules.choice),
        Verifier(CODE, lambda: "code 1", "sandbox"),
        Verifier(SOFTWARE_ENGINEERING, lambda: "software_engineering 1", "sandbox"),
    )
}  # fmt: skip
