"""The budget of a directory of judgments: every request is written down before it is sent."""

from __future__ import annotations

import json
import os
from pathlib import Path
from threading import Lock

from longstride.errors import DataError
from longstride.rewards.generative.failures import CallFailed

LEDGER_FILE = "calls.jsonl"


class Ledger:
    """Counts requests and tokens in a file that survives a restart; safe between threads.

    A request counts from before it is sent, so that a killed process cannot spend it twice. One
    process writes at a time.
    """

    def __init__(self, path: Path, max_calls: int | None, max_tokens: int | None) -> None:
        """Read what was spent.

        Raises:
            DataError: a complete line of the file cannot be read.
        """
        self._max_calls, self._max_tokens = max_calls, max_tokens
        self.calls, self.tokens = _spent(path)
        self._lock = Lock()
        path.parent.mkdir(parents=True, exist_ok=True)
        self._descriptor = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        # A line that a kill cut short must not run into the next one.
        if path.stat().st_size and not path.read_bytes().endswith(b"\n"):
            os.write(self._descriptor, b"\n")

    def close(self) -> None:
        """Close the file."""
        os.close(self._descriptor)

    def reserve(self) -> None:
        """Spend one request.

        Raises:
            CallFailed: `budget`, when none is left.
        """
        with self._lock:
            if self._max_calls is not None and self.calls >= self._max_calls:
                raise CallFailed("budget", f"all {self._max_calls} requests are spent")
            if self._max_tokens is not None and self.tokens >= self._max_tokens:
                raise CallFailed("budget", f"all {self._max_tokens} tokens are spent")
            self.calls += 1
            os.write(self._descriptor, b'{"calls":1}\n')

    def spend(self, tokens: int) -> None:
        """Count the tokens of an answered request."""
        with self._lock:
            self.tokens += tokens
            os.write(self._descriptor, f'{{"tokens":{tokens}}}\n'.encode())


def _spent(path: Path) -> tuple[int, int]:
    calls = tokens = 0
    if not path.exists():
        return calls, tokens
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line:
            continue
        try:
            entry = json.loads(line)
            calls += int(entry.get("calls", 0))
            tokens += int(entry.get("tokens", 0))
        except (ValueError, AttributeError, TypeError) as error:
            if line.startswith(b"{") and not line.endswith(b"}"):
                continue  # cut short by a kill: at most the tokens of one request
            raise DataError(
                f"{path}, line {number} is no entry of a judge's ledger; restore the file, or "
                "remove it to begin a new budget"
            ) from error
    return calls, tokens
