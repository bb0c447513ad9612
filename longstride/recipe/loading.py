"""Recipes from YAML: layers (`extends`), dotted overrides, and clear refusals."""

from __future__ import annotations

import copy
from collections.abc import Hashable, Sequence
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from longstride.errors import DataError, RecipeError
from longstride.recipe.problems import describe
from longstride.store.files import read_text
from schemas.recipe import Recipe

REPLACED_WHOLE = frozenset({"mixture"})
"""Fields whose parts make sense only together: a mixture of other shares is another mixture."""


class _StrictLoader(yaml.SafeLoader):
    """Safe loading that refuses a key written twice, which YAML would silently overwrite."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[Any] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, Hashable):
                line = key_node.start_mark.line + 1
                raise RecipeError(f"line {line}: a key must be a plain name, got {key!r}")
            if key in seen:
                line = key_node.start_mark.line + 1
                raise RecipeError(f"line {line}: key {key!r} is written twice; remove one of them")
            seen.add(key)
        return super().construct_mapping(node, deep)


def load_recipe(
    source: str | Path, overrides: Sequence[str] = (), search: Sequence[Path] = ()
) -> Recipe:
    """Load a recipe with everything it extends, apply overrides, validate.

    Args:
        source: A path to a YAML file, or the name of a recipe in `search`.
        overrides: `dotted.field=value` texts; the value is YAML, list items go by number. Their
            order matters only where two set the same field: the later one wins.
        search: Folders that hold named recipes.

    Raises:
        RecipeError: Names every wrong field with its value, the rule and the fix.
    """
    path = _locate(str(source), None, search)
    values = _layers(path, search, chain=())
    # The kind of a union first: it clears the fields of the kind below, and no override.
    for override in sorted(overrides, key=lambda text: not _names_a_kind(text)):
        _apply(values, override)
    return build_recipe(values, str(path))


def build_recipe(values: dict[str, Any], origin: str) -> Recipe:
    """Validate recipe values.

    Raises:
        RecipeError: Names every wrong field with its value, the rule and the fix.
    """
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        raise RecipeError(describe(error, Recipe, origin)) from error


def _locate(name: str, base: Path | None, search: Sequence[Path]) -> Path:
    candidates = [Path(name)] if base is None else [base / name, base / f"{name}.yaml"]
    candidates += [folder / f"{name}.yaml" for folder in search]
    for candidate in candidates:
        if candidate.is_file():
            return candidate
    known = sorted({path.stem for folder in search for path in folder.glob("*.yaml")})
    raise RecipeError(
        f"there is no recipe {name!r}; give a path to a YAML file or one of {', '.join(known)}"
    )


def _layers(path: Path, search: Sequence[Path], chain: tuple[Path, ...]) -> dict[str, Any]:
    if path.resolve() in chain:
        names = " -> ".join(p.name for p in (*chain, path))
        raise RecipeError(f"recipes extend each other in a circle: {names}; remove one `extends`")
    try:
        loaded = yaml.load(read_text(path), Loader=_StrictLoader)
    except DataError as error:
        raise RecipeError(str(error)) from error
    except yaml.YAMLError as error:
        raise RecipeError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(loaded, dict):
        raise RecipeError(f"{path} holds {type(loaded).__name__}, but a recipe is a mapping")
    values: dict[str, Any] = loaded
    parent = values.pop("extends", None)
    if parent is None:
        return values
    below = _layers(
        _locate(str(parent), path.parent, search), search, chain=(*chain, path.resolve())
    )
    return _merge(below, values)


def _merge(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    merged = copy.deepcopy(below)
    for key, value in above.items():
        if key in REPLACED_WHOLE:
            merged[key] = copy.deepcopy(value)
        elif isinstance(value, dict) and isinstance(merged.get(key), dict):
            # Another kind of a discriminated union keeps nothing of the kind below it.
            same_kind = "kind" not in value or value["kind"] == merged[key].get("kind")
            merged[key] = _merge(merged[key], value) if same_kind else copy.deepcopy(value)
        else:
            merged[key] = copy.deepcopy(value)
    return merged


def _names_a_kind(override: str) -> bool:
    return override.partition("=")[0].rpartition(".")[2] == "kind"


def _apply(values: dict[str, Any], override: str) -> None:
    dotted, separator, text = override.partition("=")
    if not separator or not dotted:
        raise RecipeError(f"override {override!r} is not of the form field.subfield=value")
    try:
        value = yaml.load(text, Loader=_StrictLoader)
    except yaml.YAMLError as error:
        raise RecipeError(f"override {override!r}: {text!r} is not a YAML value") from error
    *parents, last = dotted.split(".")
    place: Any = values
    for part in parents:
        place = _descend(place, part, override)
    if last == "kind" and isinstance(place, dict) and place.get("kind") != value:
        # Another kind of a discriminated union keeps nothing of the kind below it.
        place.clear()
    if isinstance(place, list):
        place[_index(place, last, override)] = value
    elif isinstance(place, dict):
        place[last] = value
    else:
        raise RecipeError(f"override {override!r}: {parents[-1]!r} holds the value {place!r}")


def _descend(place: Any, part: str, override: str) -> Any:
    if isinstance(place, list):
        return place[_index(place, part, override)]
    if isinstance(place, dict):
        return place.setdefault(part, {})
    raise RecipeError(f"override {override!r}: cannot look up {part!r} inside the value {place!r}")


def _index(items: list[Any], part: str, override: str) -> int:
    if part.isdigit() and int(part) < len(items):
        return int(part)
    raise RecipeError(f"override {override!r}: {part!r} is not an index below {len(items)}")
