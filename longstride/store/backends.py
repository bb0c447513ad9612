"""The few operations that a store needs, on a disk and on an S3 endpoint, with equal meaning.

An object appears whole or not at all, under either. Names are relative to the location.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Protocol

from longstride.store.locations import Location, s3_files, storage_errors

PART_BYTES = 16 << 20
"""Files above twice this go up in parts."""
_MOST_PARTS = 10_000


@dataclass(frozen=True)
class ObjectInfo:
    """Size and age of an object."""

    name: str
    size: int
    changed_at: float
    """Seconds since the epoch."""


class Backend(Protocol):
    """Objects by name. Every method raises StoreError when storage fails."""

    location: Location

    def put_file(self, path: Path, name: str) -> None:
        """Upload a file, replacing what is there."""
        ...

    def create(self, name: str, data: bytes) -> bool:
        """Write an object that must not exist; False when it does."""
        ...

    def put(self, name: str, data: bytes) -> None:
        """Write a small object, replacing what is there."""
        ...

    def read(self, name: str) -> bytes:
        """All bytes of a small object.

        Raises:
            FileNotFoundError: It is not there.
        """
        ...

    def open(self, name: str) -> Any:
        """A context manager that gives a binary stream.

        Raises:
            FileNotFoundError: It is not there.
        """
        ...

    def info(self, name: str) -> ObjectInfo | None:
        """Size and age, or None."""
        ...

    def names(self, prefix: str) -> list[ObjectInfo]:
        """All objects below a prefix that ends with a slash, sorted by name."""
        ...

    def delete(self, name: str) -> None:
        """Remove an object; no error when it is not there."""
        ...

    def abort_uploads(self, older_than: float) -> int:
        """Drop parts of uploads that began before a time (epoch) and never ended; their number."""
        ...


def open_backend(location: Location) -> Backend:
    """The backend of a location's scheme."""
    return DiskBackend(location) if location.scheme == "file" else S3Backend(location)


class DiskBackend:
    """Objects as files below a folder; exclusive creation by hard link."""

    def __init__(self, location: Location) -> None:
        """Use a `file` location; the folder is made when something is written."""
        self.location = location
        self._root = Path(location.root)

    def put_file(self, path: Path, name: str) -> None:
        """Copy a file in."""
        with storage_errors(self.location, f"write {name}"), self._partial(name) as partial:
            shutil.copyfile(path, partial)
            _flush(partial)
            os.replace(partial, self._root / name)

    def create(self, name: str, data: bytes) -> bool:
        """Write once."""
        with storage_errors(self.location, f"write {name}"), self._partial(name) as partial:
            partial.write_bytes(data)
            _flush(partial)
            try:
                os.link(partial, self._root / name)
            except FileExistsError:
                return False
            return True

    def put(self, name: str, data: bytes) -> None:
        """Write or replace."""
        with storage_errors(self.location, f"write {name}"), self._partial(name) as partial:
            partial.write_bytes(data)
            _flush(partial)
            os.replace(partial, self._root / name)

    def read(self, name: str) -> bytes:
        """Read whole."""
        with storage_errors(self.location, f"read {name}"):
            return (self._root / name).read_bytes()

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Read as a stream."""
        with storage_errors(self.location, f"read {name}"), (self._root / name).open("rb") as file:
            yield file

    def info(self, name: str) -> ObjectInfo | None:
        """Stat."""
        with storage_errors(self.location, f"look at {name}"):
            try:
                found = (self._root / name).stat()
            except (FileNotFoundError, NotADirectoryError):
                return None
            return ObjectInfo(name, found.st_size, found.st_mtime)

    def names(self, prefix: str) -> list[ObjectInfo]:
        """Walk."""
        with storage_errors(self.location, f"list {prefix}"):
            found = [
                ObjectInfo(
                    path.relative_to(self._root).as_posix(),
                    path.stat().st_size,
                    path.stat().st_mtime,
                )
                for path in (self._root / prefix).rglob("*")
                if path.is_file() and not path.name.startswith(".")
            ]
        return sorted(found, key=lambda one: one.name)

    def delete(self, name: str) -> None:
        """Unlink."""
        with storage_errors(self.location, f"delete {name}"):
            (self._root / name).unlink(missing_ok=True)

    def abort_uploads(self, older_than: float) -> int:
        """Remove partial files of writers that were killed."""
        with storage_errors(self.location, "clear partial files"):
            old = [p for p in self._root.rglob(".*.partial") if p.stat().st_mtime < older_than]
            for path in old:
                path.unlink(missing_ok=True)
        return len(old)

    @contextmanager
    def _partial(self, name: str) -> Iterator[Path]:
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        descriptor, partial = tempfile.mkstemp(dir=target.parent, prefix=".", suffix=".partial")
        os.close(descriptor)
        try:
            yield Path(partial)
        finally:
            Path(partial).unlink(missing_ok=True)


class S3Backend:
    """Objects of a bucket through s3fs; exclusive creation by `If-None-Match: *`."""

    def __init__(self, location: Location) -> None:
        """Use an `s3` location; nothing is asked of the endpoint yet."""
        self.location = location
        with storage_errors(location, "open a client"):
            self._files = s3_files()

    def _key(self, name: str) -> str:
        return f"{self.location.root}/{name}"

    def put_file(self, path: Path, name: str) -> None:
        """Upload, large files in parts."""
        parts = max(PART_BYTES, -(-path.stat().st_size // _MOST_PARTS))
        with storage_errors(self.location, f"write {name}"):
            # A fixed type: the guess from a file's name would differ from machine to machine.
            self._files.put_file(
                str(path), self._key(name), chunksize=parts, ContentType="application/octet-stream"
            )

    def create(self, name: str, data: bytes) -> bool:
        """Write once, as far as the endpoint honours the condition (`ObjectStore.probe`)."""
        with storage_errors(self.location, f"write {name}"):
            try:
                self._files.pipe_file(self._key(name), data, mode="create")
            except FileExistsError:
                return False
            except OSError as error:
                # The answer 412 comes as OSError(EINVAL) from some servers.
                if _is_failed_condition(error):
                    return False
                raise
            return True

    def put(self, name: str, data: bytes) -> None:
        """Write or replace."""
        with storage_errors(self.location, f"write {name}"):
            self._files.pipe_file(self._key(name), data)

    def read(self, name: str) -> bytes:
        """Read whole."""
        with storage_errors(self.location, f"read {name}"):
            return bytes(self._files.cat_file(self._key(name)))

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        """Read as a stream of ranged requests."""
        with (
            storage_errors(self.location, f"read {name}"),
            self._files.open(self._key(name), "rb", block_size=PART_BYTES) as stream,
        ):
            yield stream

    def info(self, name: str) -> ObjectInfo | None:
        """Head."""
        with storage_errors(self.location, f"look at {name}"):
            try:
                found = self._files.info(self._key(name), refresh=True)
            except FileNotFoundError:
                return None
        if found["type"] != "file":
            return None
        return ObjectInfo(name, found["size"], found["LastModified"].timestamp())

    def names(self, prefix: str) -> list[ObjectInfo]:
        """List."""
        with storage_errors(self.location, f"list {prefix}"):
            try:
                found = self._files.find(self._key(prefix), detail=True, refresh=True)
            except FileNotFoundError:
                # An empty prefix is an empty list; a bucket that is not there is an error.
                self._files.ls(self.location.bucket, refresh=True)
                return []
        start = len(self.location.root) + 1
        return [
            ObjectInfo(key[start:], entry["size"], entry["LastModified"].timestamp())
            for key, entry in sorted(found.items())
            # Folders that s3fs makes up for prefixes are listed too.
            if entry["type"] == "file" and "LastModified" in entry
        ]

    def delete(self, name: str) -> None:
        """Delete."""
        with storage_errors(self.location, f"delete {name}"):
            try:
                self._files.rm_file(self._key(name))
            except FileNotFoundError:
                return

    def abort_uploads(self, older_than: float) -> int:
        """Abort multipart uploads of this prefix that began before `older_than`."""
        bucket, _, prefix = self.location.root.partition("/")
        with storage_errors(self.location, "clear partial uploads"):
            found = self._files.list_multipart_uploads(bucket)
            old = [
                upload
                for upload in found
                if upload["Key"].startswith(prefix) and upload["Initiated"].timestamp() < older_than
            ]
            for upload in old:
                self._files.call_s3(
                    "abort_multipart_upload",
                    Bucket=bucket,
                    Key=upload["Key"],
                    UploadId=upload["UploadId"],
                )
        return len(old)


def _is_failed_condition(error: OSError) -> bool:
    text = f"{error} {error.__cause__}".lower()
    return "pre-condition" in text or "precondition" in text


def _flush(path: Path) -> None:
    with path.open("rb") as stream:
        os.fsync(stream.fileno())
