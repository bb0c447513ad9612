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
from typing import IO, Any

from longstride.rewards import mathematics, reasoning

_PR_SET_PDEATHSIG = 1

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
    """Serve jobs until the input ends."""
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
    for line in sys.stdin.buffer:
        job = json.loads(line)
        serve(job, replies)


def serve(job: Job, replies: IO[str]) -> None:
    """Load what a job needs, say so, and answer it unless it was for loading only."""
    load, score, expected = KINDS[job["kind"]]
    failures: tuple[type[Exception], ...] = (*expected, MemoryError)
    try:
        load(job)
    except ImportError as error:
        _send(replies, {"unavailable": f"{type(error).__name__}: {error}"})
        return
    _send(replies, {"started": True})
    if "answer" not in job:
        return
    try:
        result: dict[str, Any] = {"score": score(job)}
    except failures as error:
        # Without the message, which quotes the answer.
        result = {"error": type(error).__name__}
    _send(replies, result)


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
