"""CPU and GPU slots, and the fork servers that processes come from."""

from __future__ import annotations

import os
import selectors
import time
from dataclasses import dataclass
from pathlib import Path

from longstride.runner.forkserver import ChildEvent, ForkServer, start_fork_server
from longstride.runner.options import ExecutorOptions


@dataclass(frozen=True)
class Grant:
    """Slots that a task holds while it runs. `gpus` are names for CUDA_VISIBLE_DEVICES."""

    cpus: int
    gpus: tuple[str, ...]


def _gpu_names(count: int) -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    names = [name for name in visible.split(",") if name]
    return names[:count] if len(names) >= count else [str(index) for index in range(count)]


class WorkerPool:
    """Grants slots and starts processes. A task that asks for more CPUs than exist gets all."""

    def __init__(self, run_dir: Path, options: ExecutorOptions) -> None:
        self._run_dir = run_dir
        self._options = options
        self._free_cpus = options.cpu_slots
        self._free_gpus = _gpu_names(options.gpu_slots)
        self._servers: dict[str, ForkServer] = {}
        self._selector = selectors.DefaultSelector()

    @property
    def free_cpus(self) -> int:
        """CPU slots that nobody holds."""
        return self._free_cpus

    def take(self, cpus: int, gpus: int) -> Grant | None:
        """Take slots, or None when there are not enough right now."""
        cpus = min(cpus, self._options.cpu_slots)
        if cpus > self._free_cpus or gpus > len(self._free_gpus):
            return None
        self._free_cpus -= cpus
        taken, self._free_gpus = self._free_gpus[:gpus], self._free_gpus[gpus:]
        return Grant(cpus, tuple(taken))

    def give_back(self, grant: Grant) -> None:
        """Return slots."""
        self._free_cpus += grant.cpus
        self._free_gpus = sorted([*self._free_gpus, *grant.gpus])

    def server(self, profile: str) -> ForkServer:
        """The fork server of a profile, started when it is first asked for."""
        if profile not in self._servers:
            server = start_fork_server(
                profile, self._run_dir, self._options.cpu_slots, self._options.environment
            )
            self._servers[profile] = server
            self._selector.register(server.connection, selectors.EVENT_READ, server)
        return self._servers[profile]

    def can_warm(self, profiles: tuple[str, ...]) -> bool:
        """Whether one of the profiles has no fork server, a slot is free, and none is starting."""
        warming = any(server.state == "warming" for server in self._servers.values())
        return not warming and self._free_cpus > 0 and any(p not in self._servers for p in profiles)

    def warm(self, profiles: list[str]) -> None:
        """Start one fork server ahead of need, for the first profile that has none."""
        for profile in profiles:
            if profile not in self._servers:
                self.server(profile)
                return

    def wait(self, timeout: float) -> list[tuple[ForkServer, list[ChildEvent]]]:
        """Wait for news from the fork servers, at most `timeout` seconds."""
        if not self._selector.get_map():
            time.sleep(timeout)
            return []
        news = []
        for key, _ in self._selector.select(timeout):
            server: ForkServer = key.data
            events = server.receive()
            if server.state == "broken" and server.process.poll() is not None:
                self._retire(server)
            news.append((server, events))
        return news

    def _retire(self, server: ForkServer) -> None:
        """Stop listening; one that had worked is replaced when next asked for."""
        self._selector.unregister(server.connection)
        if server.worked:
            del self._servers[server.profile]
            server.close()

    def close(self) -> None:
        """Hang up on every fork server; each kills what it still has."""
        for server in self._servers.values():
            server.close()
        self._selector.close()
