"""Plain text rules: what is usable, how it is normalised, where long text is split."""

from __future__ import annotations

import hashlib
import re
import unicodedata
from collections.abc import Callable, Iterator

Quarantine = Callable[[str, str], None]
"""Called with (where, why) for each row that cannot be used."""

_CONTROL = re.compile(r"[\x01-\x08\x0b-\x1f\x7f\ufeff]")
_CONTROL_TABLE = dict.fromkeys(c for c in range(128) if _CONTROL.fullmatch(chr(c)))
_SPACES = re.compile(r"\s+")
_EXPRESSION = re.compile(r"-?\d+(?:\s*[-+*/]\s*-?\d+)+")


def problem_of(text: object) -> str | None:
    """Say why a value cannot be a document's text, or None when it can."""
    if not isinstance(text, str):
        return f"the text is {type(text).__name__}, not a string"
    if "\0" in text:
        return f"NUL character at position {text.index(chr(0))}"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"lone surrogate at position {error.start}, not valid Unicode"
    return None


def undecodable(data: bytes, error: UnicodeDecodeError) -> str:
    """Say where bytes stop being UTF-8, by line and byte."""
    line = data.count(b"\n", 0, error.start) + 1
    return f"not valid UTF-8 (line {line}, byte {error.start}: {error.reason})"


def normalise(text: str) -> str:
    """NFC, one kind of line end, no control characters, no trailing blanks."""
    text = unicodedata.normalize("NFC", text.replace("\r\n", "\n").replace("\r", "\n"))
    # The table is far faster than the pattern, on ASCII only.
    text = text.translate(_CONTROL_TABLE) if text.isascii() else _CONTROL.sub("", text)
    return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")


def digest(text: str) -> str:
    """Digest for exact de-duplication: case and amount of white space do not matter."""
    key = " ".join(unicodedata.normalize("NFC", text).split()).casefold()
    return hashlib.sha256(key.encode()).hexdigest()


def problem_key(question: str) -> str:
    """Digest of the problem that a question poses, whatever its wording.

    Two families may ask for the same arithmetic expression in different words; a question that
    holds an expression is that expression, and any other is its text.
    """
    expressions = _EXPRESSION.findall(question)
    return digest(_SPACES.sub("", max(expressions, key=len)) if expressions else question)


def split_lines(text: str, limit: int) -> Iterator[str]:
    """Split text into pieces of at most `limit` characters, at line ends where there are any."""
    start = 0
    while len(text) - start > limit:
        cut = text.rfind("\n", start + 1, start + limit + 1)
        if cut <= start:
            cut = text.rfind(" ", start + limit // 2, start + limit + 1)
        if cut <= start:
            cut = start + limit
        yield text[start:cut]
        start = cut + 1 if text[cut] in "\n " else cut
    yield text[start:]


def order_key(seed: int, *parts: str) -> bytes:
    """A sort key that shuffles by content: the same for a row whatever other rows there are."""
    return hashlib.sha256("\0".join((str(seed), *parts)).encode()).digest()
