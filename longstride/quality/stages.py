"""Which settings of the recipe a stage's name refers to."""

from __future__ import annotations

from longstride.errors import GateCouldNotRun, RecipeError
from longstride.recipe.stages import extension_of
from schemas.recipe import Recipe
from schemas.stages import ExtensionStage, PretrainStage


def packed_stage(recipe: Recipe, stage: str) -> PretrainStage | ExtensionStage:
    """Settings of `pretrain` or `extend-<n>`.

    Raises:
        GateCouldNotRun: The recipe has no such stage.
    """
    if stage == "pretrain":
        return recipe.pretrain
    try:
        return extension_of(recipe, stage)
    except RecipeError as error:
        raise GateCouldNotRun(f"E2 guards pretraining and context extension: {error}") from error
