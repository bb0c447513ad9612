"""Benchmark a checkpoint on held-out problems: avg@k with a 95% interval."""

from kfp import dsl

from components.base import component


@component
def run_benchmark(
    code_digest: str,
    label: str,
    recipe: dsl.Input[dsl.Artifact],
    tokenizer: dsl.Input[dsl.Artifact],
    checkpoint: dsl.Input[dsl.Model],
    evaluation: dsl.Output[dsl.Artifact],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Sample and score every benchmark problem."""
    from pathlib import Path

    from longstride.recipe.resolved import open_recipe
    from longstride.training.benchmarking import benchmark_checkpoint

    result = benchmark_checkpoint(
        open_recipe(recipe.path),
        label,
        Path(tokenizer.path),
        Path(checkpoint.path),
        Path(evaluation.path),
    )
    for name, value in (
        ("average", result.average.mean),
        ("low", result.average.low),
        ("high", result.average.high),
    ):
        metrics.log_metric(name, value)
