"""Streams of rows with a cursor, in shards, in file order or shuffled."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import IO

from pydantic import Field

from longstride.data.files.lines import gzip_rows, json_rows, text_rows, zstd_rows
from longstride.data.files.position import Cursor, Mine, Position, RawRow, Shard
from longstride.data.files.storage import find_files
from longstride.data.files.tables import arrow_rows, parquet_rows
from longstride.data.text import Quarantine
from longstride.errors import DataError
from schemas.base import Contract
from schemas.data import FileSource
from schemas.rows import Document


class RowStream:
    """Rows of a file source, one after the other in the order of paths and rows.

    Every row of the shard is either yielded or quarantined. `cursor` is the place behind the row
    that was yielded last: a stream that starts there yields exactly the others.
    """

    def __init__(
        self,
        source: FileSource,
        quarantine: Quarantine,
        shard: Shard | None = None,
        cursor: Cursor | None = None,
    ) -> None:
        """List the files.

        Raises:
            DataError: The location cannot be read or holds nothing usable, or the cursor stands in
                a file that is no longer there.
        """
        self.cursor = Cursor() if cursor is None else cursor
        self._source = source
        self._quarantine = quarantine
        self._shard = Shard() if shard is None else shard
        self._files = find_files(source)
        names = [self._files.name(path) for path in self._files.paths]
        if self.cursor.file and self.cursor.file not in names:
            raise DataError(
                f"source {source.name!r}: the cursor stands in {self.cursor.file!r}, which "
                f"{source.uri} no longer has; read from the beginning"
            )

    def __iter__(self) -> Iterator[Document]:
        """Yield the rows after the cursor.

        Raises:
            DataError: The storage fails, or a table lacks the text column.
        """
        files, source = self._files, self._source
        for index, path in enumerate(files.paths):
            name = files.name(path)
            if name < self.cursor.file or not self._shard.takes_file(index, len(files.paths)):
                continue
            start = self._start(name)
            if start.finished:
                continue
            mine = self._shard.takes_row(index, len(files.paths))
            try:
                with files.storage.open(path, "rb") as stream:
                    for row in _rows(source, name, stream, start, mine):
                        self.cursor = Cursor(
                            file=name, row=row.after.row, offset=row.after.offset,
                            finished=row.after.finished,
                        )  # fmt: skip
                        if row.reason is None:
                            yield _document(source, name, row)
                        else:
                            self._quarantine(_where(name, row), row.reason)
            except files.errors as error:
                raise DataError(f"{source.uri}: {name} cannot be read: {error}") from error

    def _start(self, name: str) -> Position:
        cursor = self.cursor
        if name != cursor.file:
            return Position()
        return Position(cursor.row, cursor.offset, cursor.finished)


def read_files(source: FileSource, quarantine: Quarantine) -> Iterator[Document]:
    """Yield every row of every file below the source's location, in the order of their paths.

    Raises:
        DataError: The location does not exist, cannot be reached, holds no file of a known kind,
            or a table lacks the text column.
    """
    return iter(RowStream(source, quarantine))


class ShuffledCursor(Contract):
    """A place in a shuffled stream."""

    block: int = Field(default=0, ge=0)
    """Blocks before the current one."""
    start: Cursor = Field(default_factory=Cursor)
    """Where the current block begins."""
    taken: int = Field(default=0, ge=0)
    """Rows of the current block that were yielded."""


class ShuffledStream:
    """Rows of a file source, shuffled by a seed within blocks that fit into memory.

    A block ends at `rows` rows or `characters` characters. Rows far apart in the files stay far
    apart: a source that is sorted by topic needs `order_key` over a spool, as the corpus step does
    it. Reading from `cursor` repeats the reading of the current block, its quarantined rows too.
    """

    def __init__(
        self,
        source: FileSource,
        quarantine: Quarantine,
        seed: int,
        *,
        rows: int = 10_000,
        characters: int = 100_000_000,
        shard: Shard | None = None,
        cursor: ShuffledCursor | None = None,
    ) -> None:
        """List the files.

        Raises:
            DataError: As `RowStream`.
        """
        self.cursor = ShuffledCursor() if cursor is None else cursor
        self._seed = seed
        self._rows = rows
        self._characters = characters
        self._stream = RowStream(source, quarantine, shard, self.cursor.start)

    def __iter__(self) -> Iterator[Document]:
        """Yield the rows after the cursor.

        Raises:
            DataError: As `RowStream`.
        """
        rows = iter(self._stream)
        while block := self._block(rows):
            random.Random(f"{self._seed}/{self.cursor.block}").shuffle(block)
            behind = self._stream.cursor
            for taken in range(self.cursor.taken, len(block)):
                self.cursor = self.cursor.model_copy(update={"taken": taken + 1})
                yield block[taken]
            self.cursor = ShuffledCursor(block=self.cursor.block + 1, start=behind)

    def _block(self, rows: Iterator[Document]) -> list[Document]:
        block: list[Document] = []
        characters = 0
        while len(block) < self._rows and characters < self._characters:
            row = next(rows, None)
            if row is None:
                break
            block.append(row)
            characters += len(row.text)
        return block


def _rows(
    source: FileSource, name: str, stream: IO[bytes], start: Position, mine: Mine
) -> Iterator[RawRow]:
    lowered, field = name.lower(), source.text_field
    if lowered.endswith(".parquet"):
        return parquet_rows(stream, start, mine, source, name)
    if lowered.endswith(".arrow"):
        return arrow_rows(stream, start, mine, source, name)
    if lowered.endswith(".jsonl"):
        return json_rows(stream, start, mine, field)
    if lowered.endswith(".jsonl.gz"):
        return gzip_rows(stream, start, mine, field)
    if lowered.endswith(".jsonl.zst"):
        return zstd_rows(stream, start, mine, field)
    return text_rows(stream, start, mine)


def _where(name: str, row: RawRow) -> str:
    return f"{name}:{row.number}" if row.number else name


def _document(source: FileSource, name: str, row: RawRow) -> Document:
    where = _where(name, row)
    return Document(
        id=f"{source.name}/{where}",
        text=row.text,
        domain=source.domain,
        source=source.name,
        path=where,
        offset=row.offset,
    )
