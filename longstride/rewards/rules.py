"""Rules that are a comparison of texts: exact match and multiple choice."""

from __future__ import annotations

import re
import string
from typing import Any

from longstride.errors import DataError
from schemas.rows import RLPrompt

_LETTER = re.compile(r"\(?([A-Za-z])(?:[).:]+|\b)\s*(.*)", re.DOTALL)
_LEAD = re.compile(r"(?:the\s+)?(?:answer|choice|option)\s*(?:is\s*:?|:)?\s+", re.IGNORECASE)


def exact_match(prompt: RLPrompt, answer: str) -> float:
    """1 when the answer is the reference, the amount of blanks apart."""
    return float(answer.split() == prompt.answer.split())


def choice(prompt: RLPrompt, answer: str) -> float:
    """1 when a multiple choice names the right option, by its letter, its content, or both.

    `entry["choices"]` lists the options in the order of their letters; the reference is a letter or
    the content of one.

    Raises:
        DataError: The entry has no options, two of them are equal, or the reference is none.
    """
    options = [_plain(str(option)) for option in _options(prompt)]
    right = _chosen(options, prompt.answer)
    if right is None or len(set(options)) < len(options):
        raise DataError(
            f"prompt {prompt.id}: its reference {prompt.answer!r} must name one of its options, "
            "which must differ from each other"
        )
    return float(_chosen(options, answer) == right)


def _options(prompt: RLPrompt) -> list[Any]:
    options = prompt.entry.get("choices")
    if not isinstance(options, list) or not 2 <= len(options) <= len(string.ascii_uppercase):
        raise DataError(
            f"prompt {prompt.id}: entry.choices must list 2 to 26 options for verifier 'choice'"
        )
    return options


def _chosen(options: list[str], answer: str) -> int | None:
    """The one option that an answer names; none when it names none, or contradicts itself."""
    text = _LEAD.sub("", answer.strip(), count=1)
    if _plain(text) in options:
        return options.index(_plain(text))
    match = _LETTER.fullmatch(text)
    if match is None:
        return None
    number = string.ascii_uppercase.index(match[1].upper())
    rest = _plain(match[2])
    if number >= len(options) or rest not in ("", options[number]):
        return None
    return number


def _plain(text: str) -> str:
    return " ".join(text.lower().split()).rstrip(".")
