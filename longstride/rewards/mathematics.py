"""Mathematical answers against a reference, by math-verify; runs in a killable process only."""

from __future__ import annotations

import importlib.metadata
import logging
import re
from functools import lru_cache
from typing import Any

FAILURES: tuple[type[Exception], ...] = (
    ArithmeticError, AssertionError, AttributeError, LookupError, NotImplementedError,
    RecursionError, SyntaxError, TypeError, ValueError,
)  # fmt: skip
"""What sympy and the LaTeX parser raise on what they cannot work with."""

LONGEST_ANSWER = 20_000
"""Characters; a longer answer does not commit to a value, and is wrong."""

_MARKED = re.compile(r"\$\$(.+?)\$\$|\$(.+?)\$|\\\((.+?)\\\)|\\\[(.+?)\\\]", re.DOTALL)
_WORD = re.compile(r"(?<![\\A-Za-z])[A-Za-z]{2,}")
_NUMBER = re.compile(
    r"(?<![\w.,/])[-+]?(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?(?:/\d+)?%?(?![\w/]|[.,]\d)"
)


def version() -> str:
    """The package that scores, with its version and that of the reading of answers."""
    return f"math-verify {importlib.metadata.version('math-verify')}, reading 1"


def load() -> None:
    """Import sympy and the parser, which takes seconds."""
    import math_verify  # noqa: F401

    # It warns in every call that its own timeout is off. That one is an alarm, which only a main
    # thread can set and which a long C call never sees; ours kills the process.
    logging.getLogger("math_verify").setLevel(logging.CRITICAL)


def score(reference: str, answer: str) -> float:
    r"""1 when the answer is the reference in another form, else 0.

    Args:
        reference: an expression, number, interval or set; LaTeX with or without its dollars.
        answer: the same, or a sentence that holds one number; `\boxed{...}` counts where it is.

    Raises:
        ValueError: The reference cannot be read.
    """
    gold = _read_reference(reference)
    if not gold:
        raise ValueError("math-verify cannot read the reference answer")
    return float(any(_equal(gold, _parse(text)) for text in commitments(answer)))


def commitments(answer: str) -> list[str]:
    """The readings of an answer, as LaTeX; none when it names several values, or no value.

    An answer that lists candidates ("17 or 18") must not be right because one of them is, and
    math-verify itself looks for the last value that it can find.
    """
    text = answer.strip()
    if not text or len(text) > LONGEST_ANSWER:
        return []
    if "\\boxed" in text:
        return [text] if text.count("\\boxed") == 1 else []
    if text.count("$") == 1:  # a price
        text = text.replace("\\$", "").replace("$", "")
    marked = {"".join(groups).strip() for groups in _MARKED.findall(text)}
    if marked:
        return [f"${found}$" for found in marked] if len(marked) == 1 else []
    words = re.sub(r"\\(text|mathrm|operatorname)\s*\{[^{}]*\}", "", text)
    if not _WORD.search(words):
        return [f"${text.rstrip('.')}$"]
    numbers = set(_NUMBER.findall(text))
    return [f"${number}$".replace("%", "\\%") for number in numbers] if len(numbers) == 1 else []


@lru_cache(maxsize=4096)
def _read_reference(reference: str) -> tuple[Any, ...]:
    for text in commitments(reference):
        return tuple(_parse(text))
    return ()


def _parse(text: str) -> list[Any]:
    load()
    from math_verify import parse

    return list(parse(text, parsing_timeout=None))


def _equal(gold: tuple[Any, ...], target: list[Any]) -> bool:
    from math_verify import verify

    if not target:
        return False
    return bool(verify(list(gold), target, timeout_seconds=None, raise_on_error=True))
