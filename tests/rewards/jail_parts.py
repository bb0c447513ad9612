"""Builders shared by the tests of judging programs."""

import itertools
import os
import shutil
import time
from pathlib import Path

import pytest

from longstride.rewards.protocol import Submission
from longstride.rewards.sandbox.jails import JailEnded, Jails
from schemas.rows import RLPrompt
from schemas.verification import JudgingConfig, SandboxConfig

BACKENDS = [
    pytest.param(name, marks=pytest.mark.skipif(shutil.which(name) is None, reason=f"no {name}"))
    for name in ("bwrap", "unshare")
]
WALL = 1.5
_numbers = itertools.count(1)


def sandbox(backend="auto", **changes):
    """Small limits, and a time limit that no other jail has, by which its processes are found."""
    unique = WALL + (os.getpid() % 100_000 * 1000 + next(_numbers)) / 1e10
    values = {"backend": backend, "wall_seconds": unique, "warm": 0, "memory_mb": 256}
    return SandboxConfig.model_validate({**values, "processes": 24, "file_mb": 2, **changes})


def judging(backend="auto", **changes):
    return JudgingConfig(sandbox=sandbox(backend, **changes), program_seconds=6.0)


def run(config, program, inputs=("",)):
    """(what the jail said of each run, seconds from the request to the end of the jail)."""
    said = []
    with Jails(config) as jails:
        jail = jails.take()
        begun = time.monotonic()
        try:
            due = begun + config.wall_seconds * len(inputs) + 0.5
            jail.send({"mode": "run", "program": program, "inputs": list(inputs)}, due)
            for _ in inputs:
                said.append(jail.receive(due))
                if said[-1]["ended"] == "timeout":
                    break
        except JailEnded as error:
            said.append({"ended": error.how, "code": None, "output": ""})
        finally:
            jail.end()
        return said, time.monotonic() - begun


def left_running(config, seconds=1.0):
    """Processes of jails with these limits that are alive after a while."""
    mark = str(config.wall_seconds).encode()
    until = time.monotonic() + seconds
    while True:
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                dead = (entry / "stat").read_bytes().rsplit(b")", 1)[1].split()[0] == b"Z"
                if mark in (entry / "cmdline").read_bytes() and not dead:
                    found.append(int(entry.name))
            except OSError:
                continue
        if not found or time.monotonic() > until:
            return found
        time.sleep(0.02)


def code_prompt(**entry):
    return RLPrompt(
        id="p1", prompt="Write it.", answer="", family="mine", verifier="code", entry=entry
    )


def submit(answer, **entry):
    return Submission(code_prompt(**entry), answer)
