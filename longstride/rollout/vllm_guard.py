"""Runs a command and makes sure that none of its processes outlives the one that asked for it.

`python -m longstride.rollout.vllm_guard PARENT COMMAND...` leads a process group of its own. A
vLLM server is several processes, and one left behind holds its accelerator. When the parent dies,
however it went, or when the guard is told to stop, the command gets SIGTERM, then the whole group,
and ten seconds later SIGKILL. Standard library only, so that it starts at once.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from types import FrameType

GRACE_SECONDS = 10.0
_BETWEEN_LOOKS_SECONDS = 0.2


def guard(parent: int, command: list[str]) -> int:
    """Run `command` until it ends or the parent is gone; return its exit code."""
    stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal stopping
        stopping = True

    signal.signal(signal.SIGTERM, stop)
    # Ctrl-C is the parent's business; it stops the guard in turn.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    child = subprocess.Popen(command)
    while child.poll() is None and not stopping and os.getppid() == parent:
        time.sleep(_BETWEEN_LOOKS_SECONDS)
    code = child.poll()
    _end_group(child)
    return code if code is not None else -signal.SIGTERM


def _end_group(child: subprocess.Popen[bytes]) -> None:
    """End every other process of the group; the last signal takes the guard along.

    The server is asked first, so that it can take its workers down in order.
    """
    child.terminate()
    _wait(lambda: child.poll() is None)
    if _others():
        os.killpg(0, signal.SIGTERM)
        _wait(_others)
    if _others():
        os.killpg(0, signal.SIGKILL)


def _wait(busy: Callable[[], bool]) -> None:
    """Wait while something is busy, for half the grace at most."""
    deadline = time.monotonic() + GRACE_SECONDS / 2
    while busy() and time.monotonic() < deadline:
        time.sleep(_BETWEEN_LOOKS_SECONDS)


def _others() -> bool:
    """Whether a living process other than the guard is in its group (Linux; elsewhere: assume)."""
    group, own = os.getpgid(0), os.getpid()
    try:
        entries = os.listdir("/proc")
    except FileNotFoundError:
        return True
    for name in entries:
        if not name.isdigit() or int(name) == own:
            continue
        try:
            with open(f"/proc/{name}/stat", encoding="utf-8", errors="replace") as stream:
                fields = stream.read().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        # After the name come state, parent and group.
        if int(fields[2]) == group and fields[0] != "Z":
            return True
    return False


if __name__ == "__main__":
    sys.exit(guard(int(sys.argv[1]), sys.argv[2:]))
