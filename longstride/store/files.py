"""Atomic files and typed JSON lines on a local disk."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, TypeVar

from pydantic import BaseModel, ValidationError

from longstride.errors import DataError

_UMASK = os.umask(0)
os.umask(_UMASK)

Row = TypeVar("Row", bound=BaseModel)


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[str]]:
    """Open a text file that appears under its name only when it is complete and on disk."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        os.fchmod(descriptor, 0o666 & ~_UMASK)
        with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    with atomic_write(path) as stream:
        stream.write(text)


def write_json(path: Path, value: Any) -> None:
    """Write a JSON value, or a pydantic model, atomically."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json")
    write_text(path, json.dumps(value, indent=1, sort_keys=True, allow_nan=False) + "\n")


def read_text(path: Path) -> str:
    """Read a UTF-8 file.

    Raises:
        DataError: The file is missing or is not valid UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; the step that writes it did not finish") from error
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not valid UTF-8 (byte {error.start}: {error.reason}); re-encode the file"
        ) from error


def read_json(path: Path, model: type[Row]) -> Row:
    """Read a JSON file into a contract.

    Raises:
        DataError: The file is missing, not JSON, or does not match the contract.
    """
    try:
        return model.model_validate_json(read_text(path))
    except ValidationError as error:
        raise DataError(
            f"{path} is not a valid {model.__name__}: {first_problem(error)}"
        ) from error


def write_jsonl(path: Path, rows: Iterable[BaseModel]) -> int:
    """Write rows atomically, one JSON object a line; return how many."""
    count = 0
    with atomic_write(path) as stream:
        for row in rows:
            stream.write(row.model_dump_json())
            stream.write("\n")
            count += 1
    return count


def read_jsonl(path: Path, model: type[Row]) -> Iterator[Row]:
    """Yield typed rows.

    Raises:
        DataError: The file is missing or not UTF-8, or a line does not match the contract; names
            the line.
    """
    if not path.is_file():
        raise DataError(f"{path} does not exist; the step that writes it did not finish")
    with path.open("rb") as stream:
        for number, line in enumerate(stream, start=1):
            try:
                yield model.model_validate_json(line)
            except ValidationError as error:
                raise DataError(
                    f"{path}, line {number} is not a valid {model.__name__}: {first_problem(error)}"
                ) from error


def first_problem(error: ValidationError) -> str:
    """Say the first problem of a pydantic error in one line: field, rule, offending value."""
    problem = error.errors(include_url=False)[0]
    field = ".".join(str(part) for part in problem["loc"]) or "the whole value"
    value = repr(problem.get("input"))
    return f"{field}: {problem['msg']} (got {value[:120]})"
