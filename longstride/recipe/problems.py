"""Validation errors as sentences: the field, the value, the rule, and the fix."""

from __future__ import annotations

import difflib
import typing
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ValidationError


def describe(error: ValidationError, model: type[BaseModel], origin: str) -> str:
    """Describe every problem of a validation error, one line each."""
    problems = error.errors(include_url=False)
    lines = [f"{origin} has {len(problems)} problem{'s' if len(problems) > 1 else ''}:"]
    for problem in problems:
        lines.append("  - " + _sentence(problem, model))
    return "\n".join(lines)


def _sentence(problem: Any, model: type[BaseModel]) -> str:
    location: tuple[str | int, ...] = problem["loc"]
    field = ".".join(str(part) for part in location) or "recipe"
    value = _short(problem.get("input"))
    kind = problem["type"]
    if kind == "extra_forbidden":
        known = _fields_at(model, location[:-1])
        near = difflib.get_close_matches(str(location[-1]), known, n=1)
        fix = f"did you mean {near[0]!r}?" if near else f"known fields: {', '.join(known)}"
        return f"{field}: unknown field (value {value}); {fix}"
    if kind == "missing":
        return f"{field}: this field is required and has no value; add it"
    if kind == "value_error":
        return f"{field}: {problem['ctx']['error']}"
    if kind == "union_tag_not_found":
        return f"{field}: {value} does not say which kind it is; add `kind: ...`"
    message = problem["msg"].replace("Input should be", "should be")
    return f"{field}: got {value}; it {message}; set it accordingly"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."


def _fields_at(model: type[BaseModel], location: Sequence[str | int]) -> list[str]:
    current: type[BaseModel] | None = model
    annotation: Any = model
    for part in location:
        if isinstance(part, str) and current is not None and part in current.model_fields:
            annotation = current.model_fields[part].annotation
        current = _model_of(annotation, part)
    return sorted(current.model_fields) if current is not None else []


def _model_of(annotation: Any, tag: str | int) -> type[BaseModel] | None:
    """The model inside an annotation; `tag` picks the member of a discriminated union."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    models = [m for a in typing.get_args(annotation) if (m := _model_of(a, tag)) is not None]
    for candidate in models:
        kind = candidate.model_fields.get("kind")
        if kind is not None and tag in (kind.default, *typing.get_args(kind.annotation)):
            return candidate
    return models[0] if len(models) == 1 else None
