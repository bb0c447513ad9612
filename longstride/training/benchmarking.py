"""The benchmark of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from longstride.evals.benchmark import run_benchmark
from longstride.rollout.native import NativeGenerator
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.checkpoints import open_checkpoint
from schemas.recipe import Recipe
from schemas.rows import EvalResult


def benchmark_checkpoint(
    recipe: Recipe, label: str, tokenizer: Path, checkpoint: Path, out: Path
) -> EvalResult:
    """Benchmark at the last window of the ladder, so that before and after are comparable.

    Raises:
        DataError: An input is damaged.
    """
    opened = open_checkpoint(checkpoint)
    return run_benchmark(
        recipe,
        NativeGenerator(opened.model, recipe.rollout.max_batch),
        Tokenizer.load(tokenizer),
        label,
        opened.digest,
        out,
        recipe.ladder.windows[-1],
    )
