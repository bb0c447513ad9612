"""A store of published directories: content-addressed files, and one record written last.

Layout below the location:

    objects/<first two>/<sha256>   bytes of files, each once, whoever published them
    published/<name>.json          a record: files of a directory by name, size and sha256
    pending/<id>.json              what a writer is uploading, so that no clean-up takes it away

A directory is published when its record is there. The record is created under the condition that
there is none, so of several writers one wins; a writer with the same content has then published
too (a retry), and one with other content is refused with the winner's name. Files that are there
already are not sent again, which is how an upload that was killed goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from longstride.errors import ConcurrentWrite, DataError, StoreError
from longstride.store.artifacts import file_record
from longstride.store.backends import Backend, open_backend
from longstride.store.files import first_problem
from longstride.store.locations import parse_location, require_name
from schemas.artifacts import FileRecord
from schemas.base import Contract, digest_of

OBJECTS = "objects/"
PUBLISHED = "published/"
PENDING = "pending/"
_PROBES = "probes/"
_TRANSFERS = 8
_BLOCK = 1 << 20
_PENDING_SECONDS = 7 * 86_400.0


class Publication(Contract):
    """The record of a published directory."""

    name: str
    """Its name in the store."""
    publisher: str
    """Who wrote it, for a person to ask."""
    files: dict[str, FileRecord]
    """Every file by relative path."""
    facts: dict[str, str] = Field(default_factory=dict)
    """What the publisher says about it."""

    @property
    def digest(self) -> str:
        """Digest of the content: files and facts, not who published them."""
        files = {name: record.sha256 for name, record in sorted(self.files.items())}
        return digest_of({"files": files, "facts": dict(sorted(self.facts.items()))})


class _Pending(Contract):
    publisher: str
    started_at: float
    digests: list[str]


class ObjectStore:
    """Publishes and fetches directories at one location."""

    def __init__(self, uri: str, publisher: str, *, single_writer: bool = False) -> None:
        """Open a store; nothing is asked of the endpoint yet.

        Args:
            uri: `s3://bucket/prefix` or a folder.
            publisher: who writes, as other writers are told.
            single_writer: the caller knows that nobody else writes here, so an endpoint that does
                not honour conditional writes may be used.

        Raises:
            StoreError: The URI is not a place, or no client can be made for it.
        """
        self.location = parse_location(uri)
        self.publisher = publisher
        self.single_writer = single_writer
        self._backend: Backend = open_backend(self.location)
        self._conditional: bool | None = None

    # ---- the endpoint ---------------------------------------------------------------------------

    def probe(self) -> bool:
        """Whether a second conditional create of a key is refused here. Asked once an instance.

        Raises:
            StoreError: The endpoint cannot be reached, or does not let us write.
        """
        if self._conditional is None:
            name = f"{_PROBES}{uuid.uuid4().hex}"
            self._backend.create(name, b"1")
            refused = not self._backend.create(name, b"2")
            self._conditional = refused and self._backend.read(name) == b"1"
            self._backend.delete(name)
        return self._conditional

    def require_exclusive_writes(self) -> None:
        """Refuse an endpoint on which the last of several writers would silently win.

        Raises:
            StoreError: The probe failed, and the store was not opened for a single writer.
        """
        if not self.probe() and not self.single_writer:
            raise StoreError(
                f"{self.location.uri} ignores conditional writes (If-None-Match), so two writers "
                "of one name could overwrite each other unseen; use another endpoint, or say that "
                "there is only one writer (--single-writer)"
            )

    # ---- writing --------------------------------------------------------------------------------

    def publish(
        self, name: str, directory: Path, facts: Mapping[str, str] | None = None
    ) -> Publication:
        """Publish all files of a directory under a name; hidden files stay behind.

        Idempotent: the same content again is no error and sends nothing.

        Raises:
            ConcurrentWrite: Other content is published under the name.
            StoreError: Storage failed, or does not honour conditional writes.
            DataError: The directory is missing or empty.
        """
        require_name(name)
        paths = {
            path.relative_to(directory).as_posix(): path
            for path in sorted(directory.rglob("*"))
            if path.is_file()
            and not any(part.startswith(".") for part in path.relative_to(directory).parts)
        }
        return self.publish_files(name, paths, facts)

    def publish_files(
        self, name: str, paths: Mapping[str, Path], facts: Mapping[str, str] | None = None
    ) -> Publication:
        """The same for files from anywhere, by the names that they get."""
        require_name(name)
        if not paths:
            raise DataError(f"nothing to publish as {name!r}: the directory is missing or empty")
        self.require_exclusive_writes()
        # Read before anything is sent: a file that changes meanwhile is noticed when it goes up.
        files = {require_name(relative): file_record(path) for relative, path in paths.items()}
        mine = Publication(
            name=name, publisher=self.publisher, files=files, facts=dict(facts or {})
        )
        there = self.find(name)
        if there is not None:
            self._refuse_unless_same(mine, there)
        # Also under a record that exists: an object that was lost since is sent again.
        wanted = {files[one].sha256: (path, files[one]) for one, path in paths.items()}
        with self._announced(files):
            self._each(lambda one: self._send(*one), list(wanted.values()))
            return self._record(mine)

    def _record(self, mine: Publication) -> Publication:
        key = _record_key(mine.name)
        if self.probe():
            self._backend.create(key, _encoded(mine))
        else:
            # One writer, as it was promised: look, then write.
            if self._backend.info(key) is None:
                self._backend.put(key, _encoded(mine))
        there = self.find(mine.name)
        if there is None:
            raise StoreError(
                f"{self.location.uri} confirmed {key} and does not have it; do not use this store"
            )
        self._refuse_unless_same(mine, there)
        return there

    def _refuse_unless_same(self, mine: Publication, there: Publication) -> None:
        if there.digest == mine.digest:
            return
        raise ConcurrentWrite(
            f"{mine.name} in {self.location.uri} was published by {there.publisher} with other "
            f"content ({there.digest[7:19]}, ours is {mine.digest[7:19]}); publish under another "
            "name, or find out which of the two is wanted"
        )

    def _send(self, path: Path, record: FileRecord) -> None:
        key = _object_key(record.sha256)
        there = self._backend.info(key)
        if there is not None and there.size == record.size:
            return
        self._backend.put_file(path, key)
        if file_record(path) != record:
            self._backend.delete(key)
            raise DataError(f"{path} changed while it was published; publish it when it is done")
        sent = self._backend.info(key)
        if sent is None or sent.size != record.size:
            raise StoreError(
                f"{self.location.uri} holds {sent.size if sent else 'no'} bytes of {path.name}, "
                f"sent were {record.size}; try again"
            )

    @contextmanager
    def _announced(self, files: Mapping[str, FileRecord]) -> Iterator[None]:
        """Keep clean-up away from objects that have no record yet, for a week if writing fails."""
        key = f"{PENDING}{uuid.uuid4().hex}.json"
        pending = _Pending(
            publisher=self.publisher,
            started_at=time.time(),
            digests=sorted({record.sha256 for record in files.values()}),
        )
        self._backend.put(key, _encoded(pending))
        yield
        self._backend.delete(key)

    def withdraw(self, name: str) -> None:
        """Remove a record; its files go with the next clean-up, unless others share them."""
        self._backend.delete(_record_key(require_name(name)))

    # ---- reading --------------------------------------------------------------------------------

    def find(self, name: str) -> Publication | None:
        """The record of a name, or None.

        Raises:
            DataError: The record is not one.
        """
        try:
            data = self._backend.read(_record_key(require_name(name)))
        except FileNotFoundError:
            return None
        try:
            return Publication.model_validate_json(data)
        except ValidationError as error:
            raise DataError(
                f"the record of {name} in {self.location.uri} is damaged: {first_problem(error)}"
            ) from error

    def names(self, prefix: str = "") -> list[str]:
        """Published names below a prefix (a whole number of name parts), sorted."""
        below = f"{PUBLISHED}{require_name(prefix)}/" if prefix else PUBLISHED
        return [
            one.name[len(PUBLISHED) : -len(".json")]
            for one in self._backend.names(below)
            if one.name.endswith(".json")
        ]

    def fetch(self, name: str, directory: Path) -> Publication:
        """Bring a published directory here; every byte is checked against its sha256.

        Files that are here already and whole are not fetched again.

        Raises:
            DataError: There is no such name, or an object is missing or damaged in the store.
            StoreError: Storage failed.
        """
        found = self.find(name)
        if found is None:
            self._backend.names(PENDING)  # says so where not even the bucket is there
            raise DataError(f"{self.location.uri} holds nothing published as {name!r}")
        directory.mkdir(parents=True, exist_ok=True)
        self._each(
            lambda one: self._bring(name, directory / require_name(one[0]), one[1]),
            sorted(found.files.items()),
        )
        return found

    def _bring(self, name: str, path: Path, record: FileRecord) -> None:
        if (
            path.is_file()
            and path.stat().st_size == record.size
            and file_record(path).sha256 == record.sha256
        ):
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
        digest = hashlib.sha256()
        try:
            with (
                self._backend.open(_object_key(record.sha256)) as source,
                partial.open("wb") as target,
            ):
                while block := source.read(_BLOCK):
                    digest.update(block)
                    target.write(block)
            if digest.hexdigest() != record.sha256:
                raise DataError(
                    f"{path.name} of {name} in {self.location.uri} is damaged: its bytes have "
                    f"sha256 {digest.hexdigest()[:12]}, the record says {record.sha256[:12]}"
                )
            partial.replace(path)
        except FileNotFoundError as error:
            raise DataError(
                f"{path.name} of {name} is missing in {self.location.uri} although its record "
                "lists it; publish it again"
            ) from error
        finally:
            partial.unlink(missing_ok=True)

    def verify(self, name: str, *, drop_damaged: bool = False) -> list[str]:
        """Problems of a published directory, one sentence each; every byte is read.

        With `drop_damaged` a damaged object is deleted, so that publishing again sends it again.
        """
        found = self.find(name)
        if found is None:
            return [f"nothing is published as {name!r}"]
        problems: list[str] = []
        for relative, record in sorted(found.files.items()):
            digest = hashlib.sha256()
            try:
                with self._backend.open(_object_key(record.sha256)) as stream:
                    while block := stream.read(_BLOCK):
                        digest.update(block)
            except FileNotFoundError:
                problems.append(f"{relative} is missing")
                continue
            if digest.hexdigest() != record.sha256:
                problems.append(f"{relative} is damaged")
                if drop_damaged:
                    self._backend.delete(_object_key(record.sha256))
        return problems

    # ---- cleaning up ----------------------------------------------------------------------------

    def collect_garbage(self, older_than_seconds: float) -> tuple[int, int]:
        """Delete objects that no record and no writer refers to, and uploads that never ended.

        Args:
            older_than_seconds: younger objects stay, whatever refers to them.

        Returns:
            Objects deleted, and uploads dropped.
        """
        limit = time.time() - older_than_seconds
        candidates = [one for one in self._backend.names(OBJECTS) if one.changed_at < limit]
        # Records and writers are read after the objects: what is published meanwhile is seen.
        used = self._announced_digests()
        for name in self.names():
            found = self.find(name)
            used |= {record.sha256 for record in found.files.values()} if found else set()
        dropped = [one for one in candidates if one.name.rsplit("/", 1)[1] not in used]
        for one in dropped:
            self._backend.delete(one.name)
        for probe in self._backend.names(_PROBES):
            if probe.changed_at < limit:
                self._backend.delete(probe.name)
        return len(dropped), self._backend.abort_uploads(limit)

    def _announced_digests(self) -> set[str]:
        digests: set[str] = set()
        for one in self._backend.names(PENDING):
            try:
                pending = _Pending.model_validate_json(self._backend.read(one.name))
            except FileNotFoundError:
                continue
            if pending.started_at < time.time() - _PENDING_SECONDS:
                self._backend.delete(one.name)
            else:
                digests |= set(pending.digests)
        return digests

    @staticmethod
    def _each(action: Callable[[Any], None], items: list[Any]) -> None:
        with ThreadPoolExecutor(max_workers=_TRANSFERS) as threads:
            for _ in threads.map(action, items):
                pass


def _object_key(sha256: str) -> str:
    return f"{OBJECTS}{sha256[:2]}/{sha256}"


def _record_key(name: str) -> str:
    return f"{PUBLISHED}{name}.json"


def _encoded(record: Contract) -> bytes:
    return (json.dumps(record.model_dump(mode="json"), indent=1, sort_keys=True) + "\n").encode()
