"""Initialise the model when a run does not start from existing weights."""

from kfp import dsl

from components.base import component


@component
def initialise_model(
    code_digest: str, recipe: dsl.Input[dsl.Artifact], checkpoint: dsl.Output[dsl.Model]
) -> None:
    """Publish freshly drawn weights."""
    from pathlib import Path

    from longstride.recipe.resolved import open_recipe
    from longstride.training.language import initialise

    manifest = initialise(open_recipe(recipe.path), Path(checkpoint.path))
    checkpoint.metadata.update({"parameters": manifest.parameters})
