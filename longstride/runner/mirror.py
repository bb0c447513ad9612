"""Keeps a store up to date with a run while it goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

from longstride.errors import DataError, PipelineError, StoreError
from longstride.runner.state import CANCELED, FAILED, SUCCEEDED, Event
from longstride.runner.transfer import push_run
from longstride.store.objects import ObjectStore


class Mirror:
    """Pushes a run in the background whenever a task ends, and once more at the end.

    A push that fails does not stop the run: it is told, and the next one sends what is missing.
    """

    def __init__(self, run_dir: Path, store: ObjectStore, tell: Callable[[str], None]) -> None:
        """Nothing is sent before `with`."""
        self._run_dir = run_dir
        self._store = store
        self._tell = tell
        self._due = threading.Event()
        self._closing = False
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> Self:
        # An endpoint that does not do is found out now and not after the first hour.
        self._store.require_exclusive_writes()
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing = True
        self._due.set()
        self._thread.join()

    def on_event(self, event: Event) -> None:
        """Hear of an event of the run."""
        if event.kind == "task" and event.payload.get("state") in (SUCCEEDED, FAILED, CANCELED):
            self._due.set()

    def _work(self) -> None:
        while not self._closing:
            self._due.wait()
            self._due.clear()
            if not self._closing:
                self._push()

    def _push(self) -> None:
        try:
            push_run(self._run_dir, self._store)
        except (StoreError, DataError, PipelineError) as error:
            self._tell(f"the run could not be mirrored: {error}")
