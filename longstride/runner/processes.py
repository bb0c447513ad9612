"""Process groups and strays: how a run makes sure that it leaves nothing behind."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

# Every process of a run carries this in its initial environment, so that strays can be found even
# after they moved to a session of their own. Nobody else sets it: what carries it may be killed.
OWNER_VARIABLE = "LONGSTRIDE_PROCESS_OF"
_CLEAN_LOOKS = 2
_BETWEEN_LOOKS_SECONDS = 0.02


def kill_group(pid: int, number: int) -> None:
    """Signal a process group; one that is gone already is fine."""
    if pid <= 0:
        return
    try:
        os.killpg(pid, number)
    except ProcessLookupError:
        return


def stray_processes(run_dir: str | Path) -> list[int]:
    """Processes of a run that are alive, this one apart; found by /proc, so on Linux only."""
    wanted = f"{OWNER_VARIABLE}={run_dir}".encode()
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        if wanted in environment.split(b"\0"):
            found.append(int(entry.name))
    return [pid for pid in found if pid != os.getpid()]


def kill_strays(run_dir: str | Path) -> list[int]:
    """Kill what is left of a run whose executor is gone. Returns the process ids.

    Looks again until two looks in a row find nothing: a process that was being forked during one
    look is there in the next, and the dead start no new ones.
    """
    killed: list[int] = []
    clean = 0
    while clean < _CLEAN_LOOKS:
        found = stray_processes(run_dir)
        for pid in found:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        killed += found
        clean = 0 if found else clean + 1
        if clean < _CLEAN_LOOKS:
            time.sleep(_BETWEEN_LOOKS_SECONDS)
    return killed
