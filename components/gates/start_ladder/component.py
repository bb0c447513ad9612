"""The length ladder's state before round 1."""

from kfp import dsl

from components.base import component


@component
def start_ladder(
    code_digest: str, recipe: dsl.Input[dsl.Artifact], ladder: dsl.Output[dsl.Artifact]
) -> None:
    """Publish the first window with the recipe's cap and gradient clip."""
    from pathlib import Path

    from longstride.recipe.resolved import open_recipe
    from longstride.training.ladder import start_ladder

    state = start_ladder(open_recipe(recipe.path), Path(ladder.path))
    ladder.metadata.update({"window": state.window, "status": state.status})
