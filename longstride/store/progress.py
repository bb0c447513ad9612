"""Progress of a long task: a small file that a live view polls, and a plain line now and then."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

PROGRESS_VARIABLE = "LONGSTRIDE_PROGRESS_FILE"
FILE_INTERVAL_SECONDS = 0.5
LINE_INTERVAL_SECONDS = 10.0


class Progress:
    """Counts units of work towards a total and says how far it is.

    The file named by LONGSTRIDE_PROGRESS_FILE, if set, holds `{done, total, unit, message,
    started_at, updated_at}` and is replaced atomically at most twice a second.
    """

    def __init__(self, total: int, unit: str) -> None:
        self.total = total
        self.unit = unit
        self._started = time.time()
        self._file_due = 0.0
        self._line_due = self._started + LINE_INTERVAL_SECONDS
        name = os.environ.get(PROGRESS_VARIABLE)
        self._path = Path(name) if name else None

    def update(self, done: int, message: str = "") -> None:
        """Report that `done` of `total` units are finished."""
        now = time.time()
        finished = done >= self.total
        if self._path is not None and (now >= self._file_due or finished):
            self._file_due = now + FILE_INTERVAL_SECONDS
            self._write(self._path, done, message, now)
        if now >= self._line_due or finished:
            self._line_due = now + LINE_INTERVAL_SECONDS
            elapsed = now - self._started
            print(f"{done}/{self.total} {self.unit} {message} ({elapsed:.0f} s)", file=sys.stderr)

    def _write(self, path: Path, done: int, message: str, now: float) -> None:
        value = {
            "done": done,
            "total": self.total,
            "unit": self.unit,
            "message": message,
            "started_at": self._started,
            "updated_at": now,
        }
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        temporary.write_text(json.dumps(value), encoding="utf-8")
        os.replace(temporary, path)
