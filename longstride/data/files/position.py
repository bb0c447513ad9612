"""Where a reader stands: rows, places in a file, cursors, shards."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from schemas.base import Contract

LARGEST_ROW = 32 * 2**20
"""Bytes of a JSONL row; a longer one is quarantined without ever being held in memory."""
WHOLE_TEXT = 8 * 2**20
"""Bytes up to which a text file is one row; a larger one is read as rows of lines."""
WHOLE_ROW = "*"
"""As a field: the text of a row is the row itself, as one JSON object."""
PIECE = 4 * 2**20
"""Bytes of such a row, its last line excepted."""


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two rows of one file."""

    row: int = 0
    """Rows of the file before it (lines, where rows are lines)."""
    offset: int = 0
    """Bytes of the file before it, decompressed; 0 where rows have no byte offset."""
    finished: bool = False
    """Nothing more can be read from the file."""


@dataclass(frozen=True, slots=True)
class RawRow:
    """One row as a file holds it: its text, or the reason why it has none that can be used."""

    number: int
    """Row of the file from 1; 0 when the file as a whole is the row."""
    offset: int | None
    """Byte of the decompressed file where the row begins; none in Parquet and Arrow files."""
    text: str
    """The text; empty when there is a reason."""
    reason: str | None
    """Why the row cannot be used."""
    after: Position
    """The place behind the row."""


Mine = Callable[[int], bool]
"""Whether a shard has a row, by its number."""


class Cursor(Contract):
    """A place in a source. Reading from it gives exactly the rows that were not read yet."""

    file: str = ""
    """File by its path below the source; empty before the first row."""
    row: int = Field(default=0, ge=0)
    """Rows of the file before the place."""
    offset: int = Field(default=0, ge=0)
    """Bytes of the file before the place."""
    finished: bool = False
    """The file is read to its end."""


class Shard(Contract):
    """One of `count` disjoint parts of a source that together are the whole.

    With at least as many files as shards, file k belongs to shard k mod count in the order of
    their paths. With fewer, row r of file k belongs to shard (k + r) mod count. Contents play no
    part, so a changed row stays in its shard.
    """

    index: int = Field(default=0, ge=0)
    """Which part."""
    count: int = Field(default=1, ge=1)
    """Parts in all."""

    @model_validator(mode="after")
    def _index_is_one_of_count(self) -> Self:
        if self.index >= self.count:
            raise ValueError(
                f"shard index={self.index} of count={self.count}: the index runs from 0 to "
                f"{self.count - 1}"
            )
        return self

    def takes_file(self, file_index: int, files: int) -> bool:
        """Whether any row of a file may belong to the shard."""
        return files < self.count or file_index % self.count == self.index

    def takes_row(self, file_index: int, files: int) -> Mine:
        """Which rows of a file belong to the shard."""
        if files >= self.count:
            return lambda number: True
        return lambda number: (file_index + number) % self.count == self.index
