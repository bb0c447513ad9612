"""The benchmark of a checkpoint."""

from __future__ import annotations

from pathlib import Path

from longstride.evals.benchmark import run_benchmark
from longstride.rollout.opening import open_generator
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
        GeneratorError: The recipe's sampling server failed.
    """
    opened = open_checkpoint(checkpoint)
    with open_generator(recipe, opened.model, out) as generator:
        generator.sync(opened.model, 0)
        return run_benchmark(
            recipe,
            generator,
            Tokenizer.load(tokenizer),
            label,
            opened.digest,
            out,
            recipe.ladder.windows[-1],
        )
