"""Texts as tokens, and the rows they are packed into."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Segment:
    """A run of tokens of one document inside one row."""

    document: str
    """Document or conversation."""
    domain: str
    """Its mixture share."""
    tokens: list[int]
    """Token ids."""
    mask: list[int]
    """1 where the token is a trained target."""
    truncated: bool
    """The document goes on after the end of this row."""


Row = list[Segment]


@dataclass(frozen=True)
class Encoded:
    """A whole document as tokens, its end token included."""

    document: str
    """Document, or `joined:a+b+c` for neighbours of one source read as one."""
    domain: str
    """Its mixture share."""
    tokens: list[int]
    """Token ids."""
    continues: bool = False
    """The document goes on after these tokens."""
