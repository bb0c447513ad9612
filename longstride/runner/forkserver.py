"""The executor's side of the fork servers: one per import profile, started when first wanted."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import longstride
from longstride.runner.processes import OWNER_VARIABLE, kill_group

PRELOAD_VARIABLE = "LONGSTRIDE_PRELOAD"


@dataclass(frozen=True)
class ChildEvent:
    """News about a child: it started, or it ended."""

    id: str
    kind: Literal["started", "exited"]
    pid: int = 0
    code: int = 0
    cpu_seconds: float = 0.0
    peak_rss_bytes: int = 0


@dataclass(eq=False)
class ForkServer:
    """One zygote. `profile` is the comma-separated list of modules it imported beforehand."""

    profile: str
    process: subprocess.Popen[bytes]
    connection: socket.socket
    log_path: Path
    state: Literal["warming", "ready", "broken"] = "warming"
    worked: bool = False
    error: str = ""
    error_detail: str = ""
    warm_seconds: float = 0.0
    threads: int = 1
    children: dict[str, int] = field(default_factory=dict)
    _buffer: bytes = b""

    def fork(self, request: dict[str, Any]) -> None:
        """Ask for a child. The request names a directory; everything large lies there as a file."""
        self.children[request["id"]] = 0
        self.connection.sendall(json.dumps(request).encode() + b"\n")

    def receive(self) -> list[ChildEvent]:
        """Read what has arrived; a closed socket breaks the server and ends its children."""
        try:
            chunk = self.connection.recv(1 << 16)
        except ConnectionResetError:
            chunk = b""
        if not chunk:
            return self._broken()
        self._buffer += chunk
        *lines, self._buffer = self._buffer.split(b"\n")
        events: list[ChildEvent] = []
        for line in lines:
            message = json.loads(line)
            kind = message.pop("event")
            if kind == "ready":
                self.state, self.warm_seconds = "ready", message["seconds"]
                self.threads, self.worked = message["threads"], True
            elif kind == "preload_failed":
                self.state, self.error = (
                    "broken",
                    f"cannot import {self.profile}: {message['error']}",
                )
                self.error_detail = message["traceback"]
            elif kind == "started":
                self.children[message["id"]] = message["pid"]
                events.append(ChildEvent(message["id"], "started", pid=message["pid"]))
            else:
                self.children.pop(message["id"], None)
                events.append(ChildEvent(kind="exited", **message))
        return events

    def _broken(self) -> list[ChildEvent]:
        code = self.process.wait()
        if self.state != "broken":
            self.state = "broken"
            self.error = (
                f"the fork server for {self.profile or 'light tasks'} ended with code {code}"
            )
        orphans, self.children = self.children, {}
        for pid in orphans.values():
            kill_group(pid, signal.SIGKILL)
        return [ChildEvent(name, "exited", pid, -signal.SIGKILL) for name, pid in orphans.items()]

    def close(self) -> None:
        """Hang up; the zygote kills what it still has and leaves."""
        self.connection.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def start_fork_server(
    profile: str, run_dir: Path, cpu_slots: int, extra: dict[str, str]
) -> ForkServer:
    """Start a zygote for an import profile; it reports `ready` later."""
    ours, theirs = socket.socketpair()
    name = profile.replace(",", "+").replace("/", "_") or "light"
    log_path = run_dir / "zygotes" / f"{name}.txt"
    log_path.parent.mkdir(exist_ok=True)
    package_root = str(Path(longstride.__file__).resolve().parent.parent)
    search_path = [package_root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {
        # Threads that spin at every barrier make a step a hundred times slower as soon as anything
        # else wants one of the cores; sleeping ones lose nothing worth having.
        "OMP_WAIT_POLICY": "PASSIVE",
        **os.environ,
        **extra,
        "_KFP_RUNTIME": "true",
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, search_path))),
        "OMP_NUM_THREADS": str(cpu_slots),
        OWNER_VARIABLE: str(run_dir),
    }
    modules = [module.strip() for module in profile.split(",") if module.strip()]
    with log_path.open("ab") as log:
        # -P: the run directory, where the process starts, must not shadow modules.
        module = ["-P", "-m", "longstride.runner.zygote"]
        process = subprocess.Popen(
            [sys.executable, *module, str(theirs.fileno()), *modules],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=run_dir,
            env=environment,
            pass_fds=[theirs.fileno()],
        )
    theirs.close()
    return ForkServer(profile, process, ours, log_path)
