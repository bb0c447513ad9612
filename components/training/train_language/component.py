"""Next-token training: continual pretraining, a step of context extension, or SFT."""

from kfp import dsl

from components.base import component


@component
def train_language(
    code_digest: str,
    stage: str,
    recipe: dsl.Input[dsl.Artifact],
    packed: dsl.Input[dsl.Dataset],
    parent: dsl.Input[dsl.Model],
    tokenizer: dsl.Input[dsl.Artifact],
    checkpoint: dsl.Output[dsl.Model],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train one stage from its parent checkpoint."""
    from pathlib import Path

    from longstride.recipe.resolved import open_recipe
    from longstride.training.language import train_stage

    final = train_stage(
        open_recipe(recipe.path),
        stage,
        Path(packed.path),
        Path(parent.path),
        Path(checkpoint.path),
        Path(metrics.path),
        Path(tokenizer.path),
    )
    for name, value in final.items():
        metrics.log_metric(name, value)
    checkpoint.metadata.update({"stage": stage})
