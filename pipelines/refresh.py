"""Regenerate what is generated and committed: compiled IR and the recipe's JSON Schema."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path

from longstride.recipe.loading import load_recipe
from longstride.store.files import write_text
from pipelines.compiling import compile_recipe
from schemas.recipe import Recipe


def shipped_recipes() -> list[Path]:
    """Every recipe under pipelines/recipes."""
    return sorted((Path(str(resources.files("pipelines"))) / "recipes").glob("*.yaml"))


def json_schema() -> str:
    """JSON Schema of a recipe, from which forms are made."""
    return json.dumps(Recipe.model_json_schema(), indent=2, sort_keys=True) + "\n"


def refresh() -> None:
    """Write all generated files."""
    schema = Path(str(resources.files("schemas"))) / "json" / "recipe.schema.json"
    write_text(schema, json_schema())
    print(schema)
    for path in shipped_recipes():
        out = path.parents[1] / "compiled" / path.name
        print(compile_recipe(load_recipe(path), out))


if __name__ == "__main__":
    refresh()
