"""A process that runs verifiers which may hang; its parent kills it when a deadline passes.

JSON lines on standard input and output: a job in, `{"started": true}` when its package is loaded,
then its result. Imports little, so that it starts in a fraction of a second.
"""

from __future__ import annotations

import ctypes
import json
import os
import resource
import signal
import sys
from collections.abc import Callable
from typing import IO, Any, NoReturn

from longstride.rewards import mathematics, reasoning

_PR_SET_PDEATHSIG = 1
LACKS = 75
"""Exit code of a child that needs a package."""

Job = dict[str, Any]


def _score_reasoning(job: Job) -> float:
    return reasoning.score(job["family"], job["entry"], job["answer"])


def _score_mathematics(job: Job) -> float:
    return mathematics.score(job["reference"], job["answer"])


def _hang(job: Job) -> float:
    """What the tests of deadlines and of dead workers are made of."""
    match job["answer"]:
        case "spin":
            while True:
                pass
        case "die":
            os._exit(7)
        case "raise":
            raise ValueError("as told")
        case "allocate":
            return float(len(bytearray(1 << 40)))
        case "print":
            print("x" * 100_000)
    return 1.0


def package_of(job: Job) -> str:
    """What must be loaded for a job."""
    return f"{job['kind']}/{job.get('family', '')}"


_Loader = Callable[[Job], None]
_Scorer = Callable[[Job], float]

KINDS: dict[str, tuple[_Loader, _Scorer, tuple[type[Exception], ...]]] = {
    "reasoning_gym": (
        lambda job: reasoning.load_family(job["family"]), _score_reasoning, reasoning.FAILURES,
    ),
    "math": (lambda job: mathematics.load(), _score_mathematics, mathematics.FAILURES),
    "fault": (lambda job: None, _hang, (ValueError,)),
}  # fmt: skip
"""By kind of job: what loads its package, what scores, and exceptions that mean "cannot judge"."""


def main() -> None:
    """Keep a child that serves jobs, until the input ends.

    The child asks its parent, this process, to import what it lacks, and is forked anew: so a child
    that is killed is replaced within milliseconds, with everything loaded.
    """
    _die_with_parent(int(sys.argv[1]))
    memory = int(sys.argv[2])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Packages print; what they print must not be taken for a result.
    replies = os.fdopen(os.dup(1), "w", encoding="ascii")
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 1)
    os.dup2(nothing, 2)
    loaded: set[str] = set()
    asked = os.memfd_create("job")
    job: Job | None = None
    while True:
        keeper = os.getpid()
        child = os.fork()
        if child == 0:
            _die_with_parent(keeper)
            serve(job, loaded, asked, replies)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if code == 0:
            return
        job = _read(asked) if code == LACKS else None
        if job is None:
            _send(replies, {"died": code})
        elif not _load(job, loaded, replies):
            job = None


def serve(job: Job | None, loaded: set[str], asked: int, replies: IO[str]) -> NoReturn:
    """Answer jobs, this one first, until one needs a package that is not loaded."""
    _send(replies, {"pid": os.getpid()})
    while True:
        if job is None:
            line = sys.stdin.buffer.readline()
            if not line:
                os._exit(0)
            job = json.loads(line)
        if package_of(job) not in loaded:
            os.ftruncate(asked, 0)
            os.lseek(asked, 0, os.SEEK_SET)
            with os.fdopen(os.dup(asked), "w", encoding="ascii") as file:
                json.dump(job, file)
            os._exit(LACKS)
        _send(replies, {"started": True})
        if "answer" in job:
            _send(replies, _answer(job))
        job = None


def _answer(job: Job) -> dict[str, Any]:
    _, score, expected = KINDS[job["kind"]]
    failures: tuple[type[Exception], ...] = (*expected, MemoryError)
    try:
        return {"number": job["number"], "score": score(job)}
    except failures as error:
        # Without the message, which quotes the answer.
        return {"number": job["number"], "error": type(error).__name__}


def _load(job: Job, loaded: set[str], replies: IO[str]) -> bool:
    try:
        KINDS[job["kind"]][0](job)
    except ImportError as error:
        what = f"{type(error).__name__}: {error}"
        _send(replies, {"number": job["number"], "unavailable": what})
        return False
    loaded.add(package_of(job))
    return True


def _read(asked: int) -> Job:
    os.lseek(asked, 0, os.SEEK_SET)
    with os.fdopen(os.dup(asked), encoding="ascii") as file:
        job: Job = json.load(file)
    return job


def _send(replies: IO[str], value: dict[str, Any]) -> None:
    replies.write(json.dumps(value) + "\n")
    replies.flush()


def _die_with_parent(parent: int) -> None:
    """Be killed when the parent is, also while a verifier hangs."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


if __name__ == "__main__":
    main()
