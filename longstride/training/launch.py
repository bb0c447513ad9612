"""One rank of a training task: `python -m longstride.training.launch REQUEST.json`.

With RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, as our launcher and torchrun do, it is one
rank. Without them it starts as many ranks as the recipe asks for, on this machine.
"""

from __future__ import annotations

import os
import signal
import sys
import time
import traceback
import warnings
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import PrefixStore, Store, TCPStore  # type: ignore[attr-defined]

from longstride.errors import EngineError, UsageError
from longstride.runner.zygote import set_parent_death_signal
from longstride.store.files import read_json, write_json
from longstride.store.seeds import stream_seed
from longstride.training.language import train_on_ranks
from longstride.training.launching import (
    LAUNCHER_VARIABLE,
    ErrorFile,
    LanguageRequest,
    Request,
    RequestFile,
    ResultFile,
    error_path,
    result_path,
    run_in_ranks,
)
from longstride.training.policy import RoundPaths, run_round_on_ranks
from longstride.training.ranks import Ranks
from schemas.engine import DeepSpeedEngine

COLLECTIVE_TIMEOUT = timedelta(hours=24)
"""Ranks may wait long for the first one, which samples and writes; a dead one is noticed at once
because its connections close."""


def main(arguments: list[str]) -> int:
    """Run one rank, or all of them."""
    if len(arguments) != 1:
        print("usage: python -m longstride.training.launch REQUEST.json", file=sys.stderr)
        return 2
    path = Path(arguments[0])
    request = read_json(path, RequestFile).request
    engine = request.recipe.engine
    if not isinstance(engine, DeepSpeedEngine):
        raise UsageError(f"engine.kind={engine.kind!r} has no ranks; set engine.kind to deepspeed")
    if "RANK" not in os.environ:
        write_json(result_path(path), ResultFile(values=run_in_ranks(request, engine)))
        return 0
    _die_with_launcher()
    # DeepSpeed calls functions that torch has renamed.
    warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.distributed")
    rank = int(os.environ["RANK"])
    try:
        values = _run(request, join(engine.rendezvous_seconds))
    except BaseException as error:  # whatever ends this rank is the error of the task
        report = ErrorFile(type=type(error).__name__, message=str(error), time=time.time())
        write_json(error_path(path, rank), report)
        traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        # Threads of the process group would keep a failed rank, and so the others, waiting.
        os._exit(1)
    if rank == 0:
        write_json(result_path(path), ResultFile(values=values))
    dist.destroy_process_group()
    return 0


def _die_with_launcher() -> None:
    """Have the kernel kill this process when its launcher dies, however that happens."""
    launcher = os.environ.get(LAUNCHER_VARIABLE)
    if launcher is None:
        return
    set_parent_death_signal(signal.SIGKILL)
    if os.getppid() != int(launcher):
        os._exit(1)


def join(seconds: int) -> Ranks:
    """Meet the other ranks and form the default process group.

    Raises:
        EngineError: Not all ranks came within `seconds`; names those that are missing.
    """
    rank, count = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = _meet(rank, count, seconds)
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
        torch.cuda.set_device(device)
    dist.init_process_group(
        "gloo" if device.type == "cpu" else "nccl",
        store=store,
        rank=rank,
        world_size=count,
        timeout=COLLECTIVE_TIMEOUT,
    )
    return Ranks(rank, count, device)


def _meet(rank: int, count: int, seconds: int) -> Store:
    """Sign in at the rendezvous and wait for everybody."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    limit = timedelta(seconds=seconds)
    held_elsewhere = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    try:
        base = TCPStore(
            address, port, None, rank == 0 and not held_elsewhere, limit, wait_for_workers=False
        )
    except (dist.DistNetworkError, dist.DistStoreError) as error:
        raise EngineError(
            f"rank {rank} of {count} did not reach the rendezvous at {address}:{port} within "
            f"{seconds} s; is rank 0, or the launcher, running there?"
        ) from error
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store = PrefixStore(f"longstride/{restart}", base)
    store.set(f"joined/{rank}", "yes")
    deadline = time.monotonic() + seconds
    missing = list(range(count))
    while missing:
        missing = [other for other in missing if not store.check([f"joined/{other}"])]
        if missing and time.monotonic() > deadline:
            names = ", ".join(str(other) for other in missing)
            raise EngineError(
                f"rank {rank} waited {seconds} s at {address}:{port} for rank(s) {names} of "
                f"{count}; see their output, or raise engine.rendezvous_seconds"
            )
        time.sleep(0.02)
    return store


def _run(request: Request, ranks: Ranks) -> dict[str, float]:
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    torch.manual_seed(stream_seed(request.recipe.seed, "ranks"))
    if isinstance(request, LanguageRequest):
        return train_on_ranks(
            request.recipe,
            request.stage,
            request.packed,
            request.parent,
            request.out,
            request.metrics,
            ranks,
            request.tokenizer,
        )
    paths = {name: getattr(request, name) for name in RoundPaths.__dataclass_fields__}
    return run_round_on_ranks(request.recipe, request.number, RoundPaths(**paths), ranks)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
