"""The first task of every run: is this recipe whole, and can this machine run it?"""

from __future__ import annotations

import shutil
from pathlib import Path

from longstride.errors import RecipeError, UsageError
from longstride.recipe.resolved import parse_compact, publish_recipe
from longstride.store.files import write_json
from longstride.version import machine, versions
from schemas.recipe import Recipe

ENVIRONMENT_FILE = "environment.json"
MINIMUM_FREE_BYTES = 500 * 2**20


def structure_of(recipe: Recipe) -> str:
    """What the compiled DAG has unrolled; another recipe may run on it only if this is equal."""
    return f"extension={len(recipe.extension)};rounds={recipe.rl.rounds}"


def check_and_publish(
    text: str, code_digest: str, structure: str, recipe_out: Path, environment_out: Path
) -> Recipe:
    """Restore the recipe, check it against the compiled DAG and the machine, publish both.

    Raises:
        RecipeError: The recipe is wrong, or the DAG was compiled for another structure.
        UsageError: The disk is too full.
    """
    recipe = parse_compact(text)
    found = structure_of(recipe)
    if found != structure:
        raise RecipeError(
            f"this pipeline was compiled for {structure}, but the recipe has {found}; compile the "
            "recipe again with `longstride compile`"
        )
    recipe_out.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(recipe_out).free
    if free < MINIMUM_FREE_BYTES:
        raise UsageError(
            f"only {free / 2**20:.0f} MiB are free at {recipe_out}, but a run needs at least "
            f"{MINIMUM_FREE_BYTES / 2**20:.0f} MiB; free some space or choose another --runs folder"
        )
    publish_recipe(recipe, recipe_out)
    write_json(
        environment_out / ENVIRONMENT_FILE,
        {"versions": versions(), "machine": machine(), "code_digest": code_digest},
    )
    return recipe
