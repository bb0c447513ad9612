"""A deadline inside the gate: a gate that takes too long says so itself, and lets nothing pass."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Final

from longstride.errors import GateCouldNotRun
from schemas.recipe import Recipe

SHARE: Final = 0.9
"""Share of the task's wall-clock limit that measuring and judging may take."""


def seconds_for(recipe: Recipe) -> float:
    """Seconds that a gate of this recipe has; the executor ends the task a little later."""
    return SHARE * recipe.resources.quality.timeout_seconds


@contextmanager
def deadline(seconds: float, what: str) -> Iterator[float]:
    """Raise `GateCouldNotRun` inside the block when time is up; gives the end in monotonic seconds.

    A timer interrupts whatever runs in the main thread. Other threads cannot be interrupted; there
    the end counts whenever a measured row is written.
    """
    end = time.monotonic() + seconds
    if threading.current_thread() is not threading.main_thread():
        yield end
        return

    def expire(_signal: int, _frame: FrameType | None) -> None:
        raise GateCouldNotRun(
            f"{what} did not finish within {seconds:g} s (resources.quality.timeout_seconds); "
            "raise the limit, or measure less"
        )

    before = signal.signal(signal.SIGALRM, expire)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield end
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
