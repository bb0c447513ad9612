"""Names of the stages that a recipe has."""

from __future__ import annotations

from longstride.errors import RecipeError
from schemas.recipe import Recipe
from schemas.stages import ExtensionStage


def extension_names(recipe: Recipe) -> list[str]:
    """`extend-1` to `extend-<n>`."""
    return [f"extend-{number}" for number in range(1, len(recipe.extension) + 1)]


def is_extension(recipe: Recipe, stage: str) -> bool:
    """Whether a stage extends the context."""
    return stage in extension_names(recipe)


def extension_of(recipe: Recipe, stage: str) -> ExtensionStage:
    """The extension stage called `extend-<n>`.

    Raises:
        RecipeError: The recipe has no such stage.
    """
    names = extension_names(recipe)
    if stage not in names:
        raise RecipeError(
            f"there is no stage {stage!r}; this recipe has pretrain, {', '.join(names)} and sft"
        )
    return recipe.extension[names.index(stage)]
