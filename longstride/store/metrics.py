"""Metrics as appended JSON lines, the source of truth for the report and for live views."""

from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Self

METRICS_FILE = "metrics.jsonl"


class MetricsWriter:
    """Appends `{"step", "name", "value", "time"}` rows; a line is on disk as soon as written.

    Without a directory it writes nothing: for processes that only help the one that writes.
    """

    def __init__(self, directory: Path | None) -> None:
        self._stream: IO[str] | None = None
        self.last: dict[str, float] = {}
        """Last value by name, of rows that the file held before too."""
        if directory is not None:
            directory.mkdir(parents=True, exist_ok=True)
            path = directory / METRICS_FILE
            if path.is_file():
                # A writer that was killed may have left half a line at the end.
                complete = path.read_text(encoding="utf-8").rpartition("\n")[0]
                rows = map(json.loads, complete.splitlines())
                self.last = {row["name"]: row["value"] for row in rows}
            self._stream = path.open("a", encoding="utf-8", buffering=1)

    def log(self, step: int, values: Mapping[str, float]) -> None:
        """Append one row a value.

        Raises:
            ValueError: A value is not finite; a metric that does not exist is left out instead.
        """
        now = round(time.time(), 3)
        for name, value in values.items():
            if not math.isfinite(value):
                raise ValueError(f"metric {name} at step {step} is {value}; it must be finite")
            row = {"step": step, "name": name, "value": value, "time": now}
            if self._stream is not None:
                self._stream.write(json.dumps(row) + "\n")
            self.last[name] = value

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._stream is not None:
            self._stream.close()
