"""Where a command finds recipes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

from longstride.recipe.loading import load_recipe
from schemas.recipe import Recipe


def recipe_folder() -> Path:
    """Folder of the shipped recipes."""
    return Path(str(resources.files("pipelines"))) / "recipes"


def open_named_recipe(name: str, overrides: list[str]) -> Recipe:
    """A YAML file, or a shipped recipe by its name, with overrides.

    Raises:
        RecipeError: It does not exist or is no recipe.
    """
    return load_recipe(name, overrides, [recipe_folder()])
