"""Copies of a task's in-progress directory in a store, for a machine that replaces this one.

On a cluster the disk of a pod goes with the pod. Where LONGSTRIDE_CHECKPOINT_STORE names a place,
every in-progress checkpoint, and every batch of samples that is complete, is copied there while
training goes on, and a task that finds nothing on its own disk looks there. Copies are kept by the
task's key (digests of recipe, code and inputs), so they serve exactly the task that made them.
"""

from __future__ import annotations

import os
import shutil
import socket
import threading
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

from longstride.errors import DataError, StoreError
from longstride.store.objects import ObjectStore
from schemas.base import digest_of

STORE_VARIABLE = "LONGSTRIDE_CHECKPOINT_STORE"
_PREFIX = "in-progress"
_OUTBOX = ".outbox"


def copies_of(key: Mapping[str, str]) -> Copies | None:
    """The copies of the task with this key; None when no place is named."""
    uri = os.environ.get(STORE_VARIABLE)
    return _copies(uri, digest_of(dict(key))[7:39]) if uri else None


@lru_cache(maxsize=8)
def _copies(uri: str, task: str) -> Copies:
    return Copies(uri, task)


class Copies:
    """Puts copies of one task's directory into a store, one at a time, in the background."""

    def __init__(self, uri: str, task: str) -> None:
        """Open the store; nothing is asked of it yet."""
        self._store = ObjectStore(uri, f"{socket.gethostname()}, process {os.getpid()}")
        self._prefix = f"{_PREFIX}/{task}"
        self._thread: threading.Thread | None = None
        self.failures: list[str] = []
        """What went wrong with copies; the checkpoint on the task's own disk is untouched by it."""

    def put(self, directory: Path) -> None:
        """Copy the directory as it is now; waits for the copy before, not for this one."""
        self.wait()
        outbox = directory / _OUTBOX
        shutil.rmtree(outbox, ignore_errors=True)
        paths = {}
        for path in sorted(directory.rglob("*")):
            relative = path.relative_to(directory)
            if path.is_file() and not any(part.startswith(".") for part in relative.parts):
                # A link holds the bytes, whatever the task replaces or deletes meanwhile.
                paths[relative.as_posix()] = outbox / relative
                paths[relative.as_posix()].parent.mkdir(parents=True, exist_ok=True)
                os.link(path, outbox / relative)
        self._thread = threading.Thread(target=self._publish, args=(paths, outbox), daemon=True)
        self._thread.start()

    def _publish(self, paths: dict[str, Path], outbox: Path) -> None:
        try:
            there = self._store.names(self._prefix)
            number = 1 + max((int(name.rsplit("/", 1)[1]) for name in there), default=0)
            self._store.publish_files(f"{self._prefix}/{number:09d}", paths)
            for name in there:
                self._store.withdraw(name)
        except (StoreError, DataError) as error:
            # Training goes on: it lost an insurance, not its state.
            self.failures.append(str(error))
            print(f"the checkpoint could not be copied: {error}")
        shutil.rmtree(outbox, ignore_errors=True)

    def wait(self) -> None:
        """Wait until the last copy is there, or has failed."""
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def restore(self, directory: Path) -> bool:
        """Bring the newest whole copy here; False when there is none.

        Raises:
            StoreError: The store cannot be reached: starting anew would be wrong, trying again is
                right.
        """
        for name in reversed(self._store.names(self._prefix)):
            try:
                self._store.fetch(name, directory)
            except DataError as error:
                print(f"discarding the copy {name}: {error}")
                self._store.withdraw(name)
                shutil.rmtree(directory, ignore_errors=True)
                continue
            print(f"going on from the copy {name} in {self._store.location.uri}")
            return True
        return False

    def discard(self) -> None:
        """Forget all copies: the task has published its result."""
        self.wait()
        try:
            for name in self._store.names(self._prefix):
                self._store.withdraw(name)
        except StoreError as error:
            self.failures.append(str(error))
            print(f"copies of the finished task were left in the store: {error}")
