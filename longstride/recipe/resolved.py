"""The resolved recipe as an artifact, which every task reads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from longstride.errors import RecipeError
from longstride.recipe.loading import build_recipe
from longstride.store.artifacts import open_artifact, publish
from longstride.store.files import read_json, write_json
from schemas.recipe import Recipe

RECIPE_FILE = "recipe.json"


def parse_compact(text: str) -> Recipe:
    """Restore a recipe from the compact JSON text that a pipeline carries as a parameter.

    Raises:
        RecipeError: The text is not JSON or not a recipe.
    """
    try:
        values: Any = json.loads(text)
    except json.JSONDecodeError as error:
        raise RecipeError(f"the recipe parameter is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise RecipeError(f"the recipe parameter holds {type(values).__name__}, not a mapping")
    return build_recipe(values, "the recipe parameter")


def publish_recipe(recipe: Recipe, directory: Path) -> None:
    """Write the resolved recipe as an artifact."""
    write_json(directory / RECIPE_FILE, recipe)
    publish(directory, "recipe", "prerequisites", recipe_digest=recipe.digest())


def open_recipe(directory: str | Path) -> Recipe:
    """Read a resolved recipe artifact.

    Raises:
        DataError: The artifact is missing, truncated or changed.
    """
    folder = Path(directory)
    open_artifact(folder, "recipe")
    return read_json(folder / RECIPE_FILE, Recipe)
