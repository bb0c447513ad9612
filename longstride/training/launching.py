"""Rank processes on one machine: started together, heard together, and dead together."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Annotated, Literal

import torch
from pydantic import Field
from torch.distributed import TCPStore  # type: ignore[attr-defined]

import longstride
from longstride import errors
from longstride.errors import EngineError, LongstrideError
from longstride.store.files import read_json, write_json
from schemas.base import Contract
from schemas.engine import DeepSpeedEngine
from schemas.recipe import Recipe

LAUNCHER_VARIABLE = "LONGSTRIDE_LAUNCHER"
"""Process id of the launcher; a rank that is not its child ends at once."""
ADDRESS = "127.0.0.1"
_POLL_SECONDS = 0.2
_LAST_WORDS_SECONDS = 2.0


class LanguageRequest(Contract):
    """One call of `longstride.training.language.train_on_ranks`."""

    kind: Literal["language"] = "language"
    recipe: Recipe
    stage: str
    packed: Path
    parent: Path
    out: Path
    metrics: Path
    tokenizer: Path | None = None


class RoundRequest(Contract):
    """One call of `longstride.training.policy.run_round_on_ranks`."""

    kind: Literal["round"] = "round"
    recipe: Recipe
    number: int
    prompts: Path
    tokenizer: Path
    checkpoint: Path
    ladder: Path
    out_checkpoint: Path
    out_rollouts: Path
    metrics: Path


Request = LanguageRequest | RoundRequest


class RequestFile(Contract):
    """What a rank reads: `python -m longstride.training.launch REQUEST.json`."""

    request: Annotated[Request, Field(discriminator="kind")]


class ResultFile(Contract):
    """What the first rank writes beside the request when all is done."""

    values: dict[str, float]


class ErrorFile(Contract):
    """What a rank that failed writes beside the request before it lets go of the others."""

    type: str
    message: str
    time: float


def result_path(request: Path) -> Path:
    """Where the first rank writes its result."""
    return request.with_suffix(".result.json")


def error_path(request: Path, rank: int) -> Path:
    """Where a rank writes why it failed."""
    return request.with_suffix(f".rank-{rank}.error.json")


@dataclass
class _Rank:
    """A process and what it has said of its current line."""

    number: int
    process: subprocess.Popen[bytes]
    line: bytes = b""
    closed: bool = False

    @property
    def output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout


def run_in_ranks(request: Request, engine: DeepSpeedEngine) -> dict[str, float]:
    """Run a request in `engine.ranks` processes of this machine and return its result.

    Their output appears with the rank in front. When one fails, the others are killed and its error
    is raised here; when this process dies, all of them die.

    Raises:
        LongstrideError: What a rank raised; `EngineError` for anything else that ended it.
    """
    with tempfile.TemporaryDirectory(prefix="longstride-ranks-") as folder:
        path = Path(folder) / "request.json"
        write_json(path, RequestFile(request=request))
        # This process holds the rendezvous, so that nobody else can take the port meanwhile.
        store = TCPStore(ADDRESS, 0, is_master=True, wait_for_workers=False)
        ranks = [_start(path, number, engine.ranks, store.port) for number in range(engine.ranks)]
        killed: list[_Rank] = []
        try:
            _follow(ranks)
            killed = [rank for rank in ranks if (rank.process.poll() or 0) < 0]
        finally:
            for rank in ranks:
                rank.process.kill()
                rank.process.wait()
                rank.output.close()
        _raise_first_failure(path, ranks, killed)
        return read_json(result_path(path), ResultFile).values


def _start(path: Path, number: int, count: int, port: int) -> _Rank:
    root = str(Path(longstride.__file__).resolve().parent.parent)
    search = [root, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, search))),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": str(max(1, torch.get_num_threads() // count)),
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(count),
        "MASTER_ADDR": ADDRESS,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        LAUNCHER_VARIABLE: str(os.getpid()),
    }
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", "longstride.training.launch", str(path)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=environment,
    )
    return _Rank(number, process)


def _follow(ranks: list[_Rank]) -> None:
    """Print what the ranks say until all have ended, or one failed and had time to say why."""
    with selectors.DefaultSelector() as selector:
        for rank in ranks:
            selector.register(rank.output, selectors.EVENT_READ, rank)
        deadline: float | None = None
        while not all(rank.closed and rank.process.poll() is not None for rank in ranks):
            for key, _ in selector.select(_POLL_SECONDS):
                if not _read(key.data):
                    selector.unregister(key.fileobj)
            if deadline is None and any(rank.process.poll() for rank in ranks):
                deadline = time.monotonic() + _LAST_WORDS_SECONDS
            if deadline is not None and time.monotonic() > deadline:
                return


def _read(rank: _Rank) -> bool:
    """Print whole lines of what has arrived; False at the end."""
    chunk = os.read(rank.output.fileno(), 1 << 16)
    *lines, rank.line = (rank.line + chunk).split(b"\n")
    if not chunk:
        rank.closed = True
        lines += [rank.line] if rank.line else []
    for line in lines:
        print(f"[rank {rank.number}] {line.decode(errors='replace')}", flush=True)
    return bool(chunk)


def _raise_first_failure(path: Path, ranks: list[_Rank], killed: list[_Rank]) -> None:
    """Raise what ended the first rank that failed.

    Ranks that somebody else killed come first: the others only lost their connection to them.
    """
    for rank in killed:
        number = -rank.process.returncode
        raise EngineError(
            f"rank {rank.number} of {len(ranks)} was killed by {signal.Signals(number).name}; when "
            "nobody did that, the machine ran out of memory"
        )
    reports = []
    for rank in ranks:
        file = error_path(path, rank.number)
        if file.is_file():
            reports.append((read_json(file, ErrorFile), rank))
    for report, rank in sorted(reports, key=lambda pair: pair[0].time):
        kind = getattr(errors, report.type, None)
        if isinstance(kind, type) and issubclass(kind, LongstrideError):
            raise kind(report.message)
        raise EngineError(f"rank {rank.number}: {report.type}: {report.message}")
    for rank in ranks:
        if rank.process.returncode:
            raise EngineError(
                f"rank {rank.number} ended with exit code {rank.process.returncode} and no Python "
                "error; see its output above"
            )
