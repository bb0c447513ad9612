"""Keep the RL prompts whose pass rate under the starting policy lies in the recipe's band."""

from kfp import dsl

from components.base import component


@component
def curate_prompts(
    code_digest: str,
    recipe: dsl.Input[dsl.Artifact],
    examples: dsl.Input[dsl.Dataset],
    tokenizer: dsl.Input[dsl.Artifact],
    checkpoint: dsl.Input[dsl.Model],
    prompts: dsl.Output[dsl.Dataset],
) -> None:
    """Sample every candidate and keep those with signal."""
    from pathlib import Path

    from longstride.recipe.resolved import open_recipe
    from longstride.training.curation import curate_with_policy

    manifest = curate_with_policy(
        open_recipe(recipe.path),
        Path(examples.path),
        Path(tokenizer.path),
        Path(checkpoint.path),
        Path(prompts.path),
    )
    prompts.metadata.update(manifest.counts)
