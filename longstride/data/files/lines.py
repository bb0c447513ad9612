"""Rows of JSONL and of plain text, in bounded memory whatever the file holds."""

from __future__ import annotations

import gzip
import io
import json
import zlib
from collections.abc import Iterator
from typing import IO, Any

from longstride.data.files.position import (
    LARGEST_ROW,
    PIECE,
    WHOLE_ROW,
    WHOLE_TEXT,
    Mine,
    Position,
    RawRow,
)
from longstride.data.text import problem_of, undecodable

_BLOCK = 1 << 20
_COMPRESSED_BLOCK = 1 << 12
"""Small, since one compressed byte of zstd can stand for 32 KiB."""


def json_rows(stream: IO[bytes], start: Position, mine: Mine, field: str) -> Iterator[RawRow]:
    """Rows of a JSONL file; blank lines are none."""
    buffered = io.BufferedReader(stream, _BLOCK)  # type: ignore[type-var]
    try:
        if start.offset:
            buffered.seek(start.offset)
        yield from _json_lines(buffered, start, mine, field)
    finally:
        buffered.detach()  # whoever opened the stream closes it


def gzip_rows(stream: IO[bytes], start: Position, mine: Mine, field: str) -> Iterator[RawRow]:
    """Rows of a gzipped JSONL file; the row where a damaged stream breaks off has a reason."""
    with gzip.GzipFile(fileobj=stream) as plain:
        errors = (EOFError, gzip.BadGzipFile, zlib.error)
        yield from _compressed_lines(plain, errors, start, mine, field)


def zstd_rows(stream: IO[bytes], start: Position, mine: Mine, field: str) -> Iterator[RawRow]:
    """Rows of a zstd-compressed JSONL file, likewise."""
    import zstandard

    errors = (EOFError, zstandard.ZstdError)
    with io.BufferedReader(_ZstdStream(stream), _BLOCK) as plain:
        yield from _compressed_lines(plain, errors, start, mine, field)


class _ZstdStream(io.RawIOBase):
    """Decompressed bytes, frame after frame; unlike zstandard's own reader it notices a cut."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._frame: Any = None
        self._compressed = b""
        self._plain = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        while not self._plain:
            block = self._compressed or self._stream.read(_COMPRESSED_BLOCK)
            self._compressed = b""
            if not block:
                if self._frame is not None:
                    raise EOFError("the file ends inside a zstd frame")
                return 0
            self._plain = memoryview(self._decompress(block))
        count = min(len(target), len(self._plain))
        target[:count] = self._plain[:count]
        self._plain = self._plain[count:]
        return count

    def _decompress(self, block: bytes) -> bytes:
        import zstandard

        if self._frame is None:
            self._frame = zstandard.ZstdDecompressor().decompressobj()
        plain: bytes = self._frame.decompress(block)
        if self._frame.eof:
            self._compressed = self._frame.unused_data
            self._frame = None
        return plain


def _compressed_lines(
    plain: Any, errors: tuple[type[Exception], ...], start: Position, mine: Mine, field: str
) -> Iterator[RawRow]:
    here = start
    try:
        left = start.offset
        while left and (skipped := plain.read(min(left, _BLOCK))):
            left -= len(skipped)
        for row in _json_lines(plain, start, lambda number: True, field):
            here = row.after
            if mine(row.number):
                yield row
    except errors as error:
        number = here.row + 1
        reason = f"the compressed stream breaks here: {error}"
        if mine(number):
            yield RawRow(number, here.offset, "", reason, Position(number, here.offset, True))


def _json_lines(stream: Any, start: Position, mine: Mine, field: str) -> Iterator[RawRow]:
    number, offset = start.row, start.offset
    while line := stream.readline(LARGEST_ROW + 1):
        begin, number = offset, number + 1
        offset += len(line)
        overlong = len(line) > LARGEST_ROW and not line.endswith(b"\n")
        if overlong:
            offset += _skip_line(stream)
        if not mine(number) or not line.strip():
            continue
        after = Position(number, offset)
        if overlong:
            reason: str | None = f"the row is longer than {LARGEST_ROW:,} bytes"
            yield RawRow(number, begin, "", reason, after)
        else:
            text, reason = _json_text(line, field)
            yield RawRow(number, begin, text, reason, after)


def _skip_line(stream: Any) -> int:
    skipped = 0
    while part := stream.readline(_BLOCK):
        skipped += len(part)
        if part.endswith(b"\n"):
            break
    return skipped


def _json_text(line: bytes, field: str) -> tuple[str, str | None]:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return "", f"not valid UTF-8 (byte {error.start} of the row: {error.reason})"
    except (ValueError, RecursionError) as error:  # also an integer of too many digits
        return "", f"not valid JSON: {error}"
    if not isinstance(row, dict):
        return "", f"the row is {type(row).__name__}, not an object"
    if field == WHOLE_ROW:
        return line.decode().strip(), None
    if field not in row:
        return "", f"no field {field!r} (it has {sorted(row)[:8]}); set text_field"
    reason = problem_of(row[field])
    return ("", reason) if reason else (row[field], None)


def text_rows(stream: IO[bytes], start: Position, mine: Mine) -> Iterator[RawRow]:
    """A text file as one row, or as rows of many lines each when it is large."""
    if start.row == 0:
        data = stream.read(WHOLE_TEXT + 1)
        if len(data) <= WHOLE_TEXT:
            if mine(0):
                text, reason = decode(data)
                yield RawRow(0, 0, text, reason, Position(1, len(data), True))
            return
    else:
        data = b""
        stream.seek(start.offset)
    number, offset = start.row, start.offset
    # One byte beyond the piece shows whether a character goes on there.
    while data := data + stream.read(max(0, PIECE + 1 - len(data))):
        cut = _line_end(data, PIECE)
        number += 1
        if mine(number):
            text, reason = decode(data[:cut])
            yield RawRow(number, offset, text, reason, Position(number, offset + cut))
        offset += cut
        data = data[cut:]


def _line_end(data: bytes, limit: int) -> int:
    """Where to cut: after the last line that ends within the limit, never inside a character."""
    if len(data) <= limit:
        return len(data)
    cut = data.rfind(b"\n", 0, limit) + 1
    if cut:
        return cut
    cut = limit
    while cut > limit - 4 and data[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


def decode(data: bytes) -> tuple[str, str | None]:
    """Text of UTF-8 bytes, or the reason why they are not usable text."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return "", undecodable(data, error)
    reason = problem_of(text)
    return ("", reason) if reason else (text, None)
