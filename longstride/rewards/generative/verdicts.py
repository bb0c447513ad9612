"""Verdicts of a judge: one JSON object that carries the code of its own question."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

Verdict = int | str

_END_THINK = "</think>"
_READ_CHARACTERS = 20_000
_DECODER = json.JSONDecoder(object_pairs_hook=lambda pairs: pairs)


class UnreadableVerdict(ValueError):
    """A reply holds no verdict, or more than one. The message never quotes the reply."""


def parse_verdict(text: str, nonce: str, field: str, allowed: Sequence[Verdict]) -> Verdict:
    """Return the verdict that a reply ends with.

    Only objects with the question's code count, so that a verdict which the judged answer shows, or
    which the judge repeats from it, is never read. The judge's own thinking is not read either.

    Args:
        text: the judge's reply.
        nonce: code of the question.
        field: key of the verdict.
        allowed: its values; their types count too.

    Raises:
        UnreadableVerdict: there is none, one is not allowed, or several differ.
    """
    if _END_THINK in text:
        text = text.rpartition(_END_THINK)[2]
    elif "<think>" in text:
        raise UnreadableVerdict("the judge's thinking does not end")
    found: list[Verdict] = []
    for pairs in _objects(text[-_READ_CHARACTERS:]):
        keys = [key for key, _ in pairs]
        if ("code", nonce) not in pairs:
            continue
        if keys.count("code") != 1 or keys.count(field) != 1:
            raise UnreadableVerdict(f"the verdict does not hold {field!r} once")
        value = next(value for key, value in pairs if key == field)
        if not any(type(value) is type(known) and value == known for known in allowed):
            raise UnreadableVerdict(f"the verdict's {field!r} is not one of {list(allowed)}")
        found.append(value)
    if not found:
        raise UnreadableVerdict("the reply holds no verdict with the question's code")
    if len(set(found)) > 1:
        raise UnreadableVerdict("the reply holds verdicts that differ")
    return found[0]


def _objects(text: str) -> Iterator[list[tuple[str, Any]]]:
    """Key-value pairs of the JSON objects in a text, outermost ones only."""
    place = text.find("{")
    while place >= 0:
        try:
            pairs, end = _DECODER.raw_decode(text, place)
        except (ValueError, RecursionError):
            end = place + 1
        else:
            yield pairs
        place = text.find("{", end)
