"""Text of the user's own: folders, JSONL and Parquet, on a disk or in an object store."""

from __future__ import annotations

import gzip
import json
import posixpath
import zlib
from collections.abc import Iterator
from typing import IO, Any

from longstride.data.text import Quarantine, problem_of, undecodable
from longstride.errors import DataError
from schemas.data import FileSource
from schemas.rows import Document

TEXT_SUFFIXES = (
    ".txt", ".md", ".rst", ".tex", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".java", ".js",
    ".ts", ".go", ".rs", ".sh", ".sql",
)  # fmt: skip
TABLE_SUFFIXES = (".jsonl", ".jsonl.gz", ".parquet")
_PARQUET_BATCH = 1024


def read_files(source: FileSource, quarantine: Quarantine) -> Iterator[Document]:
    """Yield every row of every file below the source's location, in the order of their paths.

    Raises:
        DataError: The location does not exist, cannot be reached, holds no file of a known kind,
            or a Parquet file lacks the text column.
    """
    storage, base, usable, errors = _usable_files(source)
    for path in usable:
        name = posixpath.relpath(path, base)
        try:
            with storage.open(path, "rb") as stream:
                yield from _read_one(source, name, stream, quarantine)
        except errors as error:
            raise DataError(f"{source.uri}: {name} cannot be read: {error}") from error


def list_files(source: FileSource) -> list[tuple[str, object, object]]:
    """Name, size and last change (time or ETag) of every file that would be read.

    Raises:
        DataError: As `read_files`.
    """
    storage, base, usable, errors = _usable_files(source)
    found = []
    for path in usable:
        try:
            info = storage.info(path)
        except errors as error:
            raise DataError(f"{source.uri}: {path} cannot be read: {error}") from error
        change = info.get("ETag") or info.get("mtime") or info.get("LastModified")
        found.append((posixpath.relpath(path, base), info.get("size"), change))
    return found


def _usable_files(
    source: FileSource,
) -> tuple[Any, str, list[str], tuple[type[Exception], ...]]:
    """Storage, base folder, paths of a known kind, and the errors that storage raises."""
    storage, root, errors = _open_storage(source)
    try:
        single = storage.isfile(root)
        paths = [root] if single else sorted(storage.find(root))
    except errors as error:
        raise DataError(f"{source.uri} cannot be read: {error}") from error
    base = posixpath.dirname(root) if single else root.rstrip("/")
    usable = [p for p in paths if _is_usable(posixpath.relpath(p, base))]
    if not usable:
        found = f"{len(paths)} files, none of a known kind" if paths else "nothing"
        raise DataError(
            f"source {source.name!r}: {source.uri} holds {found}; expected text "
            f"({', '.join(TEXT_SUFFIXES)}) or tables ({', '.join(TABLE_SUFFIXES)}) there"
        )
    return storage, base, usable, errors


def _open_storage(source: FileSource) -> tuple[Any, str, tuple[type[Exception], ...]]:
    import fsspec.core

    errors: tuple[type[Exception], ...] = (OSError,)
    if source.uri.startswith("s3://"):
        from botocore.exceptions import (
            BotoCoreError,
            ClientError,
        )

        errors = (OSError, BotoCoreError, ClientError)
    try:
        storage, root = fsspec.core.url_to_fs(source.uri)
    except (ValueError, ImportError) as error:
        raise DataError(
            f"source {source.name!r}: {source.uri} is no location that can be read ({error}); use "
            "a local path, file:// or s3://"
        ) from error
    return storage, root, errors


def _is_usable(name: str) -> bool:
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not hidden and name.lower().endswith(TEXT_SUFFIXES + TABLE_SUFFIXES)


def _read_one(
    source: FileSource, name: str, stream: IO[bytes], quarantine: Quarantine
) -> Iterator[Document]:
    lowered = name.lower()
    if lowered.endswith(".parquet"):
        rows = _parquet_rows(source, name, stream, quarantine)
    elif lowered.endswith(".jsonl"):
        rows = _json_rows(source, name, stream, quarantine)
    elif lowered.endswith(".jsonl.gz"):
        rows = _json_rows(source, name, gzip.GzipFile(fileobj=stream), quarantine)
    else:
        rows = _text_row(name, stream.read(), quarantine)
    for path, text in rows:
        yield Document(
            id=f"{source.name}/{path}",
            text=text,
            domain=source.domain,
            source=source.name,
            path=path,
        )


def _text_row(name: str, data: bytes, quarantine: Quarantine) -> Iterator[tuple[str, str]]:
    text, reason = _decode(data)
    if reason is None:
        yield name, text
    else:
        quarantine(name, reason)


def _decode(data: bytes) -> tuple[str, str | None]:
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        return "", undecodable(data, error)
    return text, problem_of(text)


def _json_rows(
    source: FileSource, name: str, stream: IO[bytes] | gzip.GzipFile, quarantine: Quarantine
) -> Iterator[tuple[str, str]]:
    number = 0
    try:
        for number, line in enumerate(stream, start=1):
            if not line.strip():
                continue
            text, reason = _json_text(line, source.text_field)
            if reason is None:
                yield f"{name}:{number}", text
            else:
                quarantine(f"{name}:{number}", reason)
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        quarantine(f"{name}:{number + 1}", f"the compressed stream breaks here: {error}")


def _json_text(line: bytes, field: str) -> tuple[str, str | None]:
    try:
        row = json.loads(line.decode())
    except UnicodeDecodeError as error:
        return "", f"not valid UTF-8 (byte {error.start} of the row: {error.reason})"
    except (json.JSONDecodeError, RecursionError) as error:
        return "", f"not valid JSON: {error}"
    if not isinstance(row, dict):
        return "", f"the row is {type(row).__name__}, not an object"
    if field not in row:
        return "", f"no field {field!r} (it has {sorted(row)[:8]}); set text_field"
    reason = problem_of(row[field])
    return ("", reason) if reason else (row[field], None)


def _parquet_rows(
    source: FileSource, name: str, stream: IO[bytes], quarantine: Quarantine
) -> Iterator[tuple[str, str]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    number = 0
    try:
        table = pq.ParquetFile(stream)
        _check_column(source, name, table.schema_arrow)
        for batch in table.iter_batches(batch_size=_PARQUET_BATCH, columns=[source.text_field]):
            # As bytes: pyarrow does not check that a string column is UTF-8 when it reads it.
            for value in batch.column(0).cast(pa.large_binary()):
                number += 1
                data = value.as_py()
                text, reason = ("", "the text is null") if data is None else _decode(data)
                if reason is None:
                    yield f"{name}:{number}", text
                else:
                    quarantine(f"{name}:{number}", reason)
    except (FileNotFoundError, PermissionError, ConnectionError, TimeoutError):
        raise  # the storage failed, not the file
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
        quarantine(f"{name}:{number + 1}", f"not readable as Parquet from here: {error}")


def _check_column(source: FileSource, name: str, schema: Any) -> None:
    import pyarrow as pa

    field = source.text_field
    if field not in schema.names:
        raise DataError(
            f"source {source.name!r}: {name} has no column {field!r} (it has {schema.names}); set "
            "text_field to the column that holds the text"
        )
    kind = schema.field(field).type
    if not (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        raise DataError(
            f"source {source.name!r}: column {field!r} of {name} has type {kind}, not string; set "
            "text_field to a column of text"
        )
