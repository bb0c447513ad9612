"""Plain data between two jails, by value: what comes out has only built-in types.

A program's own classes, with their own ideas of equality, do not pass: whatever they are, they
arrive as the built-in type that they extend, or as an `Opaque` that equals nothing.
"""

from __future__ import annotations

from itertools import islice
from typing import Any

DEPTH = 60
ITEMS = 100_000


class Opaque:
    """Stands for a value that cannot be passed. Equal to nothing, not even itself."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]

    def __bool__(self) -> bool:
        raise TypeError("a value that cannot be passed is neither true nor false")

    def __repr__(self) -> str:
        return f"<{self.name}>"


def encode(value: Any, depth: int = 0) -> Any:
    """The value as JSON."""
    if depth > DEPTH:
        return ["o", "too deep"]
    if value is None or value is True or value is False:
        return value
    inner = depth + 1
    if isinstance(value, str):
        return "".join(str.__iter__(value))
    if isinstance(value, int):
        return ["i", hex(int.__int__(value))]
    if isinstance(value, float):
        return ["f", float.__repr__(value)]
    if isinstance(value, complex):
        return ["c", repr(value.real), repr(value.imag)]
    if isinstance(value, (bytes, bytearray)):
        return ["b", bytes(value).hex()]
    if isinstance(value, dict):
        items = dict.items(value)
        return ["d", [[encode(k, inner), encode(v, inner)] for k, v in items]]
    # By the built-in type's own iteration, whatever a subclass makes of it.
    if isinstance(value, list):
        return ["l", [encode(item, inner) for item in list.__iter__(value)]]
    if isinstance(value, tuple):
        return ["t", [encode(item, inner) for item in tuple.__iter__(value)]]
    if isinstance(value, set):
        return ["s", [encode(item, inner) for item in set.__iter__(value)]]
    if isinstance(value, frozenset):
        return ["z", [encode(item, inner) for item in frozenset.__iter__(value)]]
    if isinstance(value, range):
        return ["r", [encode(part) for part in (value.start, value.stop, value.step)]]
    if hasattr(value, "__next__"):
        return ["g", [encode(item, inner) for item in islice(value, ITEMS)]]
    return ["o", type(value).__name__]


def decode(value: Any) -> Any:
    """The value again. Raises ValueError, TypeError or LookupError for what `encode` never says."""
    if value is None or isinstance(value, (bool, str)):
        return value
    if not isinstance(value, list):
        raise ValueError("not an encoded value")
    kind, content = value[0], value[1]
    match kind:
        case "i":
            return int(content, 16)
        case "f":
            return float(content)
        case "c":
            return complex(float(content), float(value[2]))
        case "b":
            return bytes.fromhex(content)
        case "d":
            return {decode(k): decode(v) for k, v in content}
        case "l":
            return [decode(item) for item in content]
        case "t":
            return tuple(decode(item) for item in content)
        case "s":
            return {decode(item) for item in content}
        case "z":
            return frozenset(decode(item) for item in content)
        case "r":
            return range(*(decode(item) for item in content))
        case "g":
            return iter([decode(item) for item in content])
        case "o":
            return Opaque(str(content))
    raise ValueError("not an encoded value")
