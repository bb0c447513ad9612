"""Generation batches of a running round on disk, so that a killed round does not sample again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from pydantic import ValidationError

from longstride.errors import DataError
from longstride.store.files import read_text, write_text
from longstride.training.collecting import Batch, batch_from_json, batch_to_json

State = Literal["begun", "collected", "learnt"]
"""After some waves; complete, with the old policy's log-probabilities; after its last update."""


class BatchStore:
    """One file a batch and state, each appearing whole; without a directory nothing is kept."""

    def __init__(self, directory: Path | None, key: Mapping[str, str]) -> None:
        """Keep batches of the task that `key` names; those of another one are not read."""
        self._directory = directory
        self._key = dict(key)

    def save(self, number: int, state: State, batch: Batch) -> None:
        """Write a batch; earlier states of it are no longer needed and go."""
        if self._directory is None:
            return
        self._directory.mkdir(parents=True, exist_ok=True)
        values = {"key": self._key, "batch": batch_to_json(batch)}
        write_text(self._path(number, state), json.dumps(values, allow_nan=False))
        for earlier in _before(state):
            self._path(number, earlier).unlink(missing_ok=True)

    def has(self, number: int, state: State) -> bool:
        """Whether there is a file of the batch in that state."""
        return self._directory is not None and self._path(number, state).is_file()

    def load(self, number: int, state: State) -> Batch | None:
        """The batch in that state; None when there is none that can be used."""
        if self._directory is None or not self._path(number, state).is_file():
            return None
        path = self._path(number, state)
        try:
            values = json.loads(read_text(path))
            if values["key"] == self._key:
                return batch_from_json(values["batch"])
            print(f"discarding {path.name}: it belongs to another task")
        except (DataError, ValidationError, ValueError, KeyError, TypeError) as error:
            print(f"discarding {path.name}: {error}")
        path.unlink()
        return None

    def keep_only(self, learnt: int) -> None:
        """Forget everything about batches after the one that comes next after `learnt` batches.

        Their samples belong to weights that were lost and will be made again.
        """
        if self._directory is None or not self._directory.is_dir():
            return
        for path in self._directory.glob("batch-*.json"):
            number = int(path.name.split("-")[1].split(".")[0])
            if number > learnt:
                path.unlink()

    def discard(self) -> None:
        """Remove everything."""
        if self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)

    def _path(self, number: int, state: State) -> Path:
        assert self._directory is not None
        return self._directory / f"batch-{number:05d}.{state}.json"


def _before(state: State) -> tuple[State, ...]:
    earlier: dict[State, tuple[State, ...]] = {
        "begun": (),
        "collected": ("begun",),
        "learnt": ("begun", "collected"),
    }
    return earlier[state]
