"""Suites: the checks of an edge as reviewable YAML, with thresholds that a recipe may set."""

from __future__ import annotations

import math
import re
from functools import cache
from importlib.resources import files
from typing import Any, Literal, Self

import yaml
from pydantic import Field, ValidationError, model_validator

from longstride.errors import GateCouldNotRun, RecipeError
from longstride.store.files import first_problem
from schemas.base import Contract, digest_of
from schemas.recipe import Recipe
from schemas.verdict import Edge, Severity

EDGES: tuple[Edge, ...] = ("E1", "E2", "E3", "E4", "E5", "E7", "E8")
"""Edges with a suite; E6 is the ladder."""

_PLACEHOLDER = re.compile(r"^\{(threshold|-threshold|1 - threshold)\}$")


class CheckSpec(Contract):
    """One check of a suite."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Stable name, unique within the edge; `edge/name` is its key in a recipe."""
    description: str = Field(min_length=10)
    """What is measured and why it matters, in one sentence."""
    level: Literal["rows", "summary", "drift"]
    """Whether every row is judged, one fact of the whole, or its change since the last blessed
    run."""
    column: str
    """Measured column, measured fact of the whole, or number of the profile."""
    expectation: str = Field(pattern=r"^(expect_[a-z_]+|Expect[A-Za-z]+)$")
    """Great Expectations expectation, snake case or class name."""
    arguments: dict[str, Any] = Field(default_factory=dict)
    """Its arguments; `{threshold}`, `{-threshold}` and `{1 - threshold}` are replaced."""
    threshold: float | None = None
    """Default of the threshold that a recipe may override; null when the rule has none."""
    threshold_field: str | None = None
    """Dotted recipe field that the default is taken from instead."""
    mostly: float | str | None = None
    """Least share of rows that must obey, often `{1 - threshold}`; null is all of them."""
    nullable: bool = False
    """Null means that the rule does not apply; otherwise a null stops the gate."""
    applies: str | None = None
    """What the rule applies to; goes with `nullable`, and is shown where it applies to nothing."""
    severity: Severity
    """`block`, `warn` or `info`."""
    origin: str = Field(min_length=1)
    """Where the rule and its threshold come from."""

    @model_validator(mode="after")
    def _exemptions_are_explained(self) -> Self:
        if self.level == "drift" and self.severity == "block":
            raise ValueError(
                f"check {self.name!r}: drift never blocks, since what it is told against is no "
                "input of the task; use warn or info"
            )
        if self.nullable != (self.applies is not None):
            raise ValueError(
                f"check {self.name!r}: nullable and applies go together, got nullable="
                f"{self.nullable} and applies={self.applies!r}; say what the rule applies to"
            )
        return self

    @model_validator(mode="after")
    def _threshold_is_used(self) -> Self:
        values = (*_leaves(self.arguments), self.mostly)
        used = [value for value in values if _is_placeholder(value)]
        has = self.threshold is not None or self.threshold_field is not None
        if has != bool(used):
            raise ValueError(
                f"check {self.name!r}: a threshold and a {{threshold}} placeholder go together, "
                f"got threshold={self.threshold} and placeholders {used}"
            )
        if self.threshold is not None and self.threshold_field is not None:
            raise ValueError(f"check {self.name!r} has threshold and threshold_field; keep one")
        return self


class Suite(Contract):
    """The checks of one edge."""

    edge: Edge
    """The edge that it guards."""
    subject: str
    """What is measured."""
    checks: list[CheckSpec] = Field(min_length=5)
    """Its checks in the order they are shown."""

    @model_validator(mode="after")
    def _names_are_distinct(self) -> Self:
        names = [check.name for check in self.checks]
        if len(set(names)) != len(names):
            raise ValueError(f"suite {self.edge} repeats a check name in {names}; rename one")
        return self

    @property
    def digest(self) -> str:
        """Digest of the suite with its thresholds."""
        return digest_of(self.model_dump(mode="json"))


@cache
def load_suite(edge: Edge) -> Suite:
    """Read the suite of an edge from `schemas/suites`.

    Raises:
        GateCouldNotRun: The file is missing or is not a suite.
    """
    resource = files("schemas") / "suites" / f"{edge}.yaml"
    try:
        suite = Suite.model_validate(yaml.safe_load(resource.read_text(encoding="utf-8")))
    except (OSError, yaml.YAMLError) as error:
        raise GateCouldNotRun(f"the suite {resource} cannot be read: {error}") from error
    except ValidationError as error:
        raise GateCouldNotRun(f"{resource} is no valid suite: {first_problem(error)}") from error
    if suite.edge != edge:
        raise GateCouldNotRun(f"{resource} holds the suite of {suite.edge}, expected {edge}")
    return suite


def resolve(suite: Suite, recipe: Recipe) -> Suite:
    """The suite with the thresholds of a recipe filled in; no placeholder is left.

    Raises:
        RecipeError: `quality.thresholds` names an unknown check, or one without a threshold.
    """
    check_thresholds(recipe)
    overrides = recipe.quality.thresholds
    checks = [
        _filled(spec, overrides.get(f"{suite.edge}/{spec.name}"), recipe) for spec in suite.checks
    ]
    return Suite.model_construct(edge=suite.edge, subject=suite.subject, checks=checks)


def check_thresholds(recipe: Recipe) -> None:
    """Refuse overrides that would have no effect.

    Raises:
        RecipeError: `quality.thresholds` names an unknown check, or one without a threshold.
    """
    known = {f"{edge}/{spec.name}": spec for edge in EDGES for spec in load_suite(edge).checks}
    for key, value in recipe.quality.thresholds.items():
        if key not in known:
            edge = key.split("/")[0]
            near = [name for name in known if name.startswith(edge + "/")] or list(EDGES)
            raise RecipeError(
                f"quality.thresholds: there is no check {key!r} (value {value:g}); keys are "
                f"edge/check, one of {', '.join(near)}"
            )
        spec = known[key]
        if spec.threshold is None and spec.threshold_field is None:
            raise RecipeError(
                f"quality.thresholds: {key} is exact and has no threshold to set to {value:g}; "
                "remove the key"
            )


def _filled(spec: CheckSpec, override: float | None, recipe: Recipe) -> CheckSpec:
    threshold = spec.threshold if override is None else override
    if threshold is None and spec.threshold_field is not None:
        threshold = _recipe_value(recipe, spec.threshold_field)
    data = dict(spec)
    data["threshold"] = threshold
    data["arguments"] = _substitute(spec.arguments, threshold)
    data["mostly"] = _substitute(spec.mostly, threshold)
    if data["mostly"] is not None and not 0.0 <= data["mostly"] <= 1.0:
        raise RecipeError(
            f"the threshold of check {spec.name!r} is a share of rows and must be in [0, 1], got "
            f"{threshold}"
        )
    return CheckSpec.model_construct(**data)


def _recipe_value(recipe: Recipe, dotted: str) -> float:
    value: Any = recipe
    for part in dotted.split("."):
        value = getattr(value, part, None)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise GateCouldNotRun(f"a suite refers to recipe field {dotted!r}, which is no number")
    return float(value)


def _substitute(value: Any, threshold: float | None) -> Any:
    if isinstance(value, dict):
        return {key: _substitute(item, threshold) for key, item in value.items()}
    if isinstance(value, list):
        return [_substitute(item, threshold) for item in value]
    if not _is_placeholder(value):
        return value
    if threshold is None or not math.isfinite(threshold):
        raise GateCouldNotRun(f"no finite threshold for placeholder {value!r}, got {threshold}")
    forms = {"{threshold}": threshold, "{-threshold}": -threshold}
    return forms.get(value, 1.0 - threshold)


def _is_placeholder(value: Any) -> bool:
    return isinstance(value, str) and _PLACEHOLDER.match(value) is not None


def _leaves(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [leaf for item in value.values() for leaf in _leaves(item)]
    if isinstance(value, list):
        return [leaf for item in value for leaf in _leaves(item)]
    return [value]
