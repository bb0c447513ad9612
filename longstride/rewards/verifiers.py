"""Verifiers: whether an answer is right, wrong, or could not be judged."""

from __future__ import annotations

import importlib.metadata
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from longstride.errors import DataError
from schemas.rows import RLPrompt

REASONING_GYM = "reasoning_gym"
EXACT_MATCH = "exact_match"
ACCEPTED = 1.0
"""Scorers give partial credit for near misses; only full marks are correct.

Not a little below: reasoning-gym's spell_backward sums n times 1/n, so that "abcdefx" earns
0.9999999999999999 where "abcdef" is asked.
"""


@dataclass(frozen=True)
class Verifier:
    """How a kind of answer is scored."""

    name: str
    """Name that prompts refer to."""
    score: Callable[[RLPrompt, str], float]
    """(prompt, answer) -> score from 0 to 1."""
    failures: tuple[type[Exception], ...]
    """Exceptions that mean "could not be judged"; any other is a defect and propagates."""
    version: Callable[[], str]
    """Version of what scores, for results that are compared later."""
    load: Callable[[], None]
    """Do the slow imports now."""


def accepts(prompt: RLPrompt, answer: str) -> bool | None:
    """Whether the verifier accepts an answer; None when it could not judge.

    Raises:
        DataError: No verifier has the prompt's verifier name.
    """
    verifier = verifier_of(prompt)
    try:
        score = verifier.score(prompt, answer)
    except verifier.failures:
        return None
    return bool(score >= ACCEPTED)


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


def _load_reasoning_gym() -> None:
    # Some of its dependencies compile with warnings; they are not ours to show.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import reasoning_gym  # noqa: F401


@lru_cache(maxsize=256)
def _scorer(family: str) -> Any:
    _load_reasoning_gym()
    from reasoning_gym import create_dataset

    return create_dataset(family, seed=0, size=1)


def _score_reasoning_gym(prompt: RLPrompt, answer: str) -> float:
    return float(_scorer(prompt.family).score_answer(answer=answer, entry=prompt.entry))


def _score_exact(prompt: RLPrompt, answer: str) -> float:
    return float(answer.split() == prompt.answer.split())


def _reasoning_gym_version() -> str:
    return f"reasoning-gym {importlib.metadata.version('reasoning-gym')}"


VERIFIERS: dict[str, Verifier] = {
    REASONING_GYM: Verifier(
        REASONING_GYM,
        _score_reasoning_gym,
        # What its scorers raise on input that they do not expect (ArithmeticError holds
        # ZeroDivisionError, OverflowError and decimal.InvalidOperation).
        (
            ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError,
            SyntaxError, TypeError, ValueError,
        ),
        _reasoning_gym_version,
        _load_reasoning_gym,
    ),
    EXACT_MATCH: Verifier(EXACT_MATCH, _score_exact, (), lambda: "exact_match 1", lambda: None),
}  # fmt: skip
