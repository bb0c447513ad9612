"""How a run is executed here: slots, cache, environment, and who listens."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from longstride.errors import UsageError
from longstride.runner.state import Event


@dataclass(frozen=True)
class ExecutorOptions:
    """Options of the embedded executor.

    Attributes:
        cpu_slots: how many CPU slots tasks share; a task that asks for more gets all of them.
        gpu_slots: how many accelerators tasks share; a task that asks for more is refused.
        cache_dir: where the task cache lives; `.cache` beside the run directory when None.
        caching: False runs every task even when the cache knows it.
        environment: variables added to every task; not part of the cache key.
        secrets: Kubernetes secrets by name: key to value. Never written to disk.
        listener: called in the executor's thread with every event after it is on disk.
        poll_seconds: how often stop requests and deadlines are looked at.
        grace_seconds: time between SIGTERM and SIGKILL when a task is cancelled or times out.
    """

    cpu_slots: int = field(default_factory=lambda: os.cpu_count() or 1)
    gpu_slots: int = 0
    cache_dir: Path | None = None
    caching: bool = True
    environment: dict[str, str] = field(default_factory=dict)
    secrets: dict[str, dict[str, str]] = field(default_factory=dict)
    listener: Callable[[Event], None] | None = None
    poll_seconds: float = 0.2
    grace_seconds: float = 5.0

    def __post_init__(self) -> None:
        """Refuse values that cannot work.

        Raises:
            UsageError: names the option and its value.
        """
        if self.cpu_slots < 1:
            raise UsageError(f"cpu_slots is {self.cpu_slots}; a run needs at least 1")
        if self.gpu_slots < 0:
            raise UsageError(f"gpu_slots is {self.gpu_slots}; it cannot be negative")
        if self.poll_seconds <= 0 or self.grace_seconds < 0:
            raise UsageError("poll_seconds must be above 0 and grace_seconds not below 0")
