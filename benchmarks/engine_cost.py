"""What a training step costs with each engine: CPU seconds against plain torch, in one run.

One process, one rank, the tiny recipe's model and its SFT step. The engines take turns, so that
whatever else the machine does falls on all of them alike; medians and their ratios are printed.
The peak memory of a pass with and without activation checkpointing is measured beside it.
"""

from __future__ import annotations

import argparse
import os
import resource
import socket
import statistics
import time
import warnings
from pathlib import Path

import torch

from longstride.model.hybrid import HybridModel
from longstride.recipe.loading import load_recipe
from longstride.training.engine import Engine
from longstride.training.engines import create_engine
from longstride.training.launch import join
from longstride.training.loop import accumulate
from longstride.training.packed import PackedRows
from longstride.training.ranks import Ranks
from schemas.engine import DeepSpeedEngine, EngineConfig, TorchEngine
from schemas.recipe import Recipe
from schemas.stages import OptimizerConfig

RECIPES = Path(__file__).parents[1] / "pipelines" / "recipes"
ENGINES: dict[str, EngineConfig] = {
    "torch": TorchEngine(),
    "torch, checkpointed": TorchEngine(activation_checkpointing=True),
    **{f"zero {stage}": DeepSpeedEngine(zero_stage=stage) for stage in range(4)},
    "zero 3, all sharded": DeepSpeedEngine(zero_stage=3, persistent_elements=0),
}


def random_rows(recipe: Recipe, rows: int, window: int) -> PackedRows:
    """Rows of random tokens; the cost does not depend on which."""
    shape = (rows, window)
    generator = torch.Generator().manual_seed(0)
    return PackedRows(
        torch.randint(0, recipe.model.vocab_size, shape, generator=generator),
        torch.zeros(shape, dtype=torch.long),
        torch.arange(shape[1]).expand(shape).contiguous(),
        torch.ones(shape, dtype=torch.bool),
    )


def one_step(engine: Engine, rows: PackedRows) -> float:
    """CPU seconds of one step."""
    began = time.process_time()
    accumulate(engine, rows)
    engine.step(1e-4, 1.0)
    return time.process_time() - began


def peak_bytes(recipe: Recipe, config: EngineConfig, rows: PackedRows) -> int:
    """Resident memory that one forward and backward pass adds at its peak, in a forked process."""
    reader, writer = os.pipe()
    if os.fork() == 0:
        engine = create_engine(HybridModel(recipe.model), OptimizerConfig(), config, Ranks())
        accumulate(engine, rows.take(torch.arange(1)))
        before = int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        accumulate(engine, rows)
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        os.write(writer, str(peak - before).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as stream:
        return int(stream.read())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=30, help="timed steps of each engine")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = str(taken.getsockname()[1])
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1"}
    os.environ["MASTER_PORT"] = port
    recipe = load_recipe("tiny", (), [RECIPES])
    long_rows = random_rows(recipe, rows=8, window=2048)
    memory = [
        peak_bytes(recipe, TorchEngine(microbatch_tokens=1 << 14, **kept), long_rows)
        for kept in ({}, {"activation_checkpointing": True})
    ]
    ranks = join(60)
    rows = random_rows(recipe, recipe.sft.rows_per_step, recipe.sft.window)
    engines = {}
    for name, config in ENGINES.items():
        model = HybridModel(recipe.model)
        model.initialise(recipe.seed)
        engines[name] = create_engine(model, recipe.sft.optimizer, config, ranks)
        for _ in range(3):
            one_step(engines[name], rows)
    seconds: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(arguments.steps):
        for name, engine in engines.items():
            seconds[name].append(one_step(engine, rows))
    plain = statistics.median(seconds["torch"])
    print(f"{rows.rows} rows x {rows.window} tokens, 1 thread, {arguments.steps} steps each")
    print(f"{'engine':22}{'CPU ms a step':>15}{'ratio':>8}")
    for name, values in seconds.items():
        median = statistics.median(values)
        print(f"{name:22}{1e3 * median:15.1f}{median / plain:8.2f}")
    whole, less = (size / 2**20 for size in memory)
    print(
        f"peak memory of a pass over {long_rows.rows} x {long_rows.window} tokens: {whole:.0f} "
        f"MiB, with activation checkpointing {less:.0f} MiB ({less / whole:.2f})"
    )


if __name__ == "__main__":
    main()
