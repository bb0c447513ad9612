"""Rows of Parquet and Arrow files, batch by batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import IO, Any

from longstride.data.files.lines import decode
from longstride.data.files.position import WHOLE_ROW, Mine, Position, RawRow
from longstride.errors import DataError
from schemas.data import FileSource

_BATCH = 256


def parquet_rows(
    stream: IO[bytes], start: Position, mine: Mine, source: FileSource, name: str
) -> Iterator[RawRow]:
    """Rows of a Parquet file; row groups before `start` are not read.

    Raises:
        DataError: The file has no column of text with that name.
    """
    yield from _rows_of(_parquet_batches(stream, start, source, name), start, mine, "Parquet")


def arrow_rows(
    stream: IO[bytes], start: Position, mine: Mine, source: FileSource, name: str
) -> Iterator[RawRow]:
    """Rows of an Arrow file as Hugging Face `datasets` saves it (IPC stream), or of an IPC file.

    Raises:
        DataError: The file has no column of text with that name.
    """
    yield from _rows_of(_arrow_batches(stream, start, source, name), start, mine, "Arrow")


def _rows_of(
    batches: Iterator[tuple[int, Any]], start: Position, mine: Mine, kind: str
) -> Iterator[RawRow]:
    import pyarrow as pa

    number = start.row
    try:
        for first, column in batches:
            # As bytes: pyarrow does not check that a string column is UTF-8 when it reads it.
            values = column.cast(pa.large_binary())
            for index in range(max(0, start.row - first), len(values)):
                number = first + index + 1
                if not mine(number):
                    continue
                data = values[index].as_py()
                text, reason = ("", "the text is null") if data is None else decode(data)
                yield RawRow(number, None, text, reason, Position(number))
    except (FileNotFoundError, PermissionError, ConnectionError, TimeoutError):
        raise  # the storage failed, not the file
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        number += 1
        reason = f"not readable as {kind} from here: {error}"
        if mine(number):
            yield RawRow(number, None, "", reason, Position(number, 0, True))


def _parquet_batches(
    stream: IO[bytes], start: Position, source: FileSource, name: str
) -> Iterator[tuple[int, Any]]:
    """(rows before the batch, column of the batch)."""
    import pyarrow.parquet as pq

    file = pq.ParquetFile(stream)
    _check_column(source, name, file.schema_arrow)
    first = 0
    groups: list[int] = []
    for group in range(file.num_row_groups):
        rows = file.metadata.row_group(group).num_rows
        if not groups and first + rows <= start.row:
            first += rows
        else:
            groups.append(group)
    if not groups:
        return
    columns = None if source.text_field == WHOLE_ROW else [source.text_field]
    for batch in file.iter_batches(batch_size=_BATCH, row_groups=groups, columns=columns):
        yield first, _column(batch, source.text_field)
        first += len(batch)


def _arrow_batches(
    stream: IO[bytes], start: Position, source: FileSource, name: str
) -> Iterator[tuple[int, Any]]:
    import pyarrow as pa

    is_file = stream.read(6) == b"ARROW1"
    stream.seek(0)
    reader = pa.ipc.open_file(stream) if is_file else pa.ipc.open_stream(stream)
    _check_column(source, name, reader.schema)
    batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if is_file else reader
    first = 0
    for batch in batches:
        if first + len(batch) > start.row:
            for part in range(0, len(batch), _BATCH):
                if first + part + _BATCH > start.row:
                    yield first + part, _column(batch[part : part + _BATCH], source.text_field)
        first += len(batch)


def _column(batch: Any, field: str) -> Any:
    """The column of a batch, or its whole rows as JSON."""
    import pyarrow as pa

    if field != WHOLE_ROW:
        return batch.column(batch.schema.get_field_index(field))
    return pa.array([json.dumps(row, default=str) for row in batch.to_pylist()], pa.string())


def _check_column(source: FileSource, name: str, schema: Any) -> None:
    import pyarrow as pa

    field = source.text_field
    if field == WHOLE_ROW:
        return
    if field not in schema.names:
        raise DataError(
            f"source {source.name!r}: {name} has no column {field!r} (it has {schema.names}); "
            "set text_field to the column that holds the text"
        )
    kind = schema.field(field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(
            f"source {source.name!r}: column {field!r} of {name} has type {kind}, not "
            "string; set text_field to a column of text"
        )
