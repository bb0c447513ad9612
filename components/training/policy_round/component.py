"""One RL round: group rollouts, group-normalised advantages, off-policy updates."""

from kfp import dsl

from components.base import component


@component
def policy_round(
    code_digest: str,
    number: int,
    recipe: dsl.Input[dsl.Artifact],
    prompts: dsl.Input[dsl.Dataset],
    tokenizer: dsl.Input[dsl.Artifact],
    ladder: dsl.Input[dsl.Artifact],
    parent: dsl.Input[dsl.Model],
    checkpoint: dsl.Output[dsl.Model],
    rollouts: dsl.Output[dsl.Dataset],
    metrics: dsl.Output[dsl.Metrics],
) -> None:
    """Train at the ladder's window, or pass the checkpoint through when the ladder has ended."""
    from pathlib import Path

    from longstride.recipe.resolved import open_recipe
    from longstride.training.policy import RoundPaths, run_round

    paths = RoundPaths(
        prompts=Path(prompts.path),
        tokenizer=Path(tokenizer.path),
        checkpoint=Path(parent.path),
        ladder=Path(ladder.path),
        out_checkpoint=Path(checkpoint.path),
        out_rollouts=Path(rollouts.path),
        metrics=Path(metrics.path),
    )
    for name, value in run_round(open_recipe(recipe.path), number, paths).items():
        metrics.log_metric(name, value)
