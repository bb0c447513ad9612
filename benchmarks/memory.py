"""Peak memory of real training steps and sampling beside the estimate of the memory plan.

Each case runs in a fresh process, which first does a little of the same work, so that what is
imported or compiled on first use does not count; then it resets the kernel's record of its peak
(Linux only) and measures how far the peak rises above where it stood. Exits with 1 when a case is
off by more than 20%.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from longstride.model.hybrid import HybridModel
from longstride.model.kernels.library import library
from longstride.recipe.activations import (
    Arithmetic,
    Batch,
    decode_bytes,
    prefill_bytes,
    training_peak,
)
from longstride.recipe.memory import ALLOCATOR_SHARE, PROCESS_BYTES, kept_by_allocator
from longstride.recipe.sizes import parameter_counts
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings
from longstride.training.engine import TorchEngine
from longstride.training.loop import accumulate
from longstride.training.packed import PackedRows
from schemas.engine import TorchEngine as EngineConfig
from schemas.model import ModelConfig
from schemas.stages import OptimizerConfig

TOLERANCE = 0.20
MIB = 2**20
TINY = ModelConfig(
    hidden_size=64, head_dim=16, rotary_dim=8, expert_hidden_size=64, init_std=0.05
)  # fmt: skip
WIDE = ModelConfig(
    vocab_size=2048, hidden_size=256, head_dim=64, rotary_dim=32, expert_hidden_size=256
)
DENSE = ModelConfig(
    block_types=["softmax"] * 8, hidden_size=128, rotary_dim=32, num_experts=1,
    experts_per_token=1, expert_hidden_size=256, residual="prenorm", qkv_bias=True,
)  # fmt: skip


@dataclass(frozen=True)
class Training:
    """Three optimizer steps of one microbatch each."""

    config: ModelConfig
    batch: Batch
    checkpointed: bool = False

    def estimate(self) -> int:
        """What the plan says of it."""
        how = Arithmetic(fused=library() is not None)
        activations = training_peak(self.config, self.batch, how, self.checkpointed)
        kept = kept_by_allocator(self.config, self.batch, how, self.checkpointed)
        return 16 * parameter_counts(self.config)[0] + activations + kept

    def warm_up(self) -> None:
        """The same on four rows of 16."""
        Training(TINY, Batch(4, 16, packed=True), self.checkpointed).run()

    def run(self) -> None:
        """Do it."""
        model = HybridModel(self.config)
        model.initialise(0)
        config = EngineConfig(
            microbatch_tokens=self.batch.size, activation_checkpointing=self.checkpointed
        )
        engine = TorchEngine(model, OptimizerConfig(), config)
        for _ in range(3):
            accumulate(engine, _rows(self.batch, self.config.vocab_size))
            engine.step(1e-3, 1.0)


@dataclass(frozen=True)
class Sampling:
    """Twice as many samples as rows, so that a refill meets full caches."""

    config: ModelConfig
    rows: int
    group: int
    prompt: int
    new: int

    def estimate(self) -> int:
        """What the plan says of it."""
        prompts = min(16_384 // self.prompt, -(-self.rows // self.group))
        sampling = decode_bytes(self.config, self.rows, self.prompt, self.new)
        sampling += prefill_bytes(self.config, prompts, self.prompt)
        return 4 * parameter_counts(self.config)[0] + round((1 + ALLOCATOR_SHARE) * sampling)

    def warm_up(self) -> None:
        """The same with four rows."""
        Sampling(TINY, 4, 2, 8, 4).run()

    def run(self) -> None:
        """Do it."""
        model = HybridModel(self.config)
        model.initialise(0)
        shape = (2 * self.rows // self.group, self.prompt)
        prompts = torch.randint(8, self.config.vocab_size, shape).tolist()
        settings = SamplingSettings(max_new_tokens=self.new)
        NativeGenerator(model, self.rows).generate(prompts, self.group, settings, 0)


CASES: dict[str, Training | Sampling] = {
    "tiny pretrain 64 x 32": Training(TINY, Batch(64, 32, packed=True)),
    "tiny sft 8 x 128": Training(TINY, Batch(8, 128, packed=True)),
    "tiny window 512, 2 rows": Training(TINY, Batch(2, 512, packed=True)),
    "tiny window 4096": Training(TINY, Batch(1, 4096, packed=True)),
    "tiny window 4096, recomputed": Training(TINY, Batch(1, 4096, packed=True), True),
    "tiny 8 x 512, one document": Training(TINY, Batch(8, 512)),
    "wide 8 x 512": Training(WIDE, Batch(8, 512, packed=True)),
    "wide 8 x 512, recomputed": Training(WIDE, Batch(8, 512, packed=True), True),
    "dense 8 x 512": Training(DENSE, Batch(8, 512, packed=True)),
    "tiny decode 64 x 512": Sampling(TINY, 64, 8, 64, 512),
    "tiny decode 256 x 128": Sampling(TINY, 256, 8, 64, 128),
    "dense decode 64 x 256": Sampling(DENSE, 64, 8, 64, 256),
    "wide decode 256 x 32": Sampling(WIDE, 256, 1, 64, 32),
}


def main() -> int:
    """Measure every case, print a table and, with --json, a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="cases whose name contains this")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child:
        print(json.dumps(_measure(CASES[arguments.child])))
        return 0
    found = {name: _in_child(name) for name in CASES if arguments.only in name}
    exact = _in_child("tiny window 512, 2 rows", MALLOC_MMAP_THRESHOLD_="65536")
    if arguments.json:
        print(json.dumps({**found, "returning freed memory at once": exact}, indent=1))
    else:
        _table(found, exact)
    return int(any(abs(row["ratio"] - 1) > TOLERANCE for row in found.values()))


def _in_child(name: str, **environment: str) -> dict[str, float]:
    out = subprocess.run(
        [sys.executable, __file__, "--child", name],
        stdout=subprocess.PIPE,
        check=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
    ).stdout
    measured: dict[str, float] = json.loads(out)
    estimate = CASES[name].estimate() / MIB
    return measured | {"estimate": estimate, "ratio": measured["peak"] / estimate}


def _measure(case: Training | Sampling) -> dict[str, float]:
    """MiB of the process before the work, and of the peak above it."""
    case.warm_up()
    before = _status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    case.run()
    return {"process": before / MIB, "peak": (_status("VmHWM") - before) / MIB}


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise ValueError(f"/proc/self/status has no {key}")


def _rows(batch: Batch, vocabulary: int) -> PackedRows:
    """Random tokens, four documents a row if packed."""
    documents = 4 if batch.packed else 1
    index = torch.arange(batch.tokens)
    segments = (index * documents // batch.tokens).expand(batch.rows, -1).contiguous()
    shape = (batch.rows, batch.tokens)
    return PackedRows(
        torch.randint(8, vocabulary, shape),
        segments,
        index.expand(shape).contiguous(),
        torch.ones(shape, dtype=torch.bool),
    )


def _table(found: dict[str, dict[str, float]], exact: dict[str, float]) -> None:
    line: Callable[..., Any] = "{:32} {:>10} {:>10} {:>7}".format
    print(line("MiB above the process", "measured", "estimate", "ratio"))
    for name, row in found.items():
        shown = (f"{row['peak']:,.0f}", f"{row['estimate']:,.0f}", f"{row['ratio']:.2f}")
        print(line(name, *shown))
    kept = found.get("tiny window 512, 2 rows")
    if kept is not None:
        share = kept["peak"] / exact["peak"] - 1
        print(
            f"the allocator kept {share:.0%} of a training step (planned: {ALLOCATOR_SHARE:.0%} of "
            "its activations)"
        )
    process = max(row["process"] for row in found.values())
    print(f"a process before its work: {process:.0f} MiB (planned: {PROCESS_BYTES / MIB:.0f} MiB)")


if __name__ == "__main__":
    sys.exit(main())
