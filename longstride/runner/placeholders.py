"""Placeholders: `{{$...}}` texts that the compiler leaves for the executor to fill in.

Only constants written in the IR are searched, and each is searched once: what a placeholder
expands to is never expanded again, and a parameter value that looks like one stays literal.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from longstride.runner.values import Artifact, render

_PLACEHOLDER = re.compile(r"\{\{\$(?:\.[^{}]*?)?\}\}")
_INPUT_PARAMETER = re.compile(r"\.inputs\.parameters\[(['\"])(.+)\1\]$")
_ARTIFACT = re.compile(
    r"\.(inputs|outputs)\.artifacts\[(['\"])(.+?)\2\](?:\.(uri|path|name|metadata)(?:\[(['\"])(.+)\5\])?)?$"
)
_OUTPUT_FILE = re.compile(r"\.outputs\.parameters\[(['\"])(.+)\1\]\.output_file$")


class _Unknown:
    """Marks a text that looks like a placeholder and is none."""


_UNKNOWN = _Unknown()


@dataclass
class PlaceholderScope:
    """What placeholders may refer to at one place of the run."""

    named: Mapping[str, str]
    parameters: Mapping[str, Any] = field(default_factory=dict)
    input_artifacts: Mapping[str, list[Artifact]] = field(default_factory=dict)
    output_artifacts: Mapping[str, list[Artifact]] = field(default_factory=dict)
    output_files: Mapping[str, str] = field(default_factory=dict)
    executor_input: str | None = None

    def lookup(self, body: str) -> Any:
        """The value for the text between `{{$` and `}}`."""
        if body == "" and self.executor_input is not None:
            return self.executor_input
        if body.startswith(".") and body[1:] in self.named:
            return self.named[body[1:]]
        if match := _INPUT_PARAMETER.match(body):
            return self.parameters.get(match.group(2), _UNKNOWN)
        if match := _OUTPUT_FILE.match(body):
            return self.output_files.get(match.group(2), _UNKNOWN)
        if match := _ARTIFACT.match(body):
            side, _, name, attribute, _, key = match.groups()
            table = self.input_artifacts if side == "inputs" else self.output_artifacts
            return _artifact_value(table.get(name), attribute, key)
        return _UNKNOWN


def _artifact_value(group: list[Artifact] | None, attribute: str | None, key: str | None) -> Any:
    if not group:
        return _UNKNOWN
    if attribute is None:
        return json.dumps({"artifacts": [artifact.runtime() for artifact in group]})
    first = group[0]
    if attribute == "metadata":
        return first.metadata if key is None else first.metadata.get(key, _UNKNOWN)
    if attribute == "path":
        return str(first.local_path or first.uri)
    return first.uri if attribute == "uri" else first.name


def expand_text(text: str, scope: PlaceholderScope) -> Any:
    """Fill in the placeholders of one text.

    A text that is one placeholder and nothing else keeps the type of its value; inside a longer
    text the value is printed. Unknown placeholders stay as they are.
    """
    whole = _PLACEHOLDER.fullmatch(text)
    if whole is not None:
        value = scope.lookup(text[3:-2])
        return text if isinstance(value, _Unknown) else value

    def replace(match: re.Match[str]) -> str:
        value = scope.lookup(match.group()[3:-2])
        return match.group() if isinstance(value, _Unknown) else render(value)

    return _PLACEHOLDER.sub(replace, text)


def expand(value: Any, scope: PlaceholderScope) -> Any:
    """Fill in placeholders in a constant of the IR, at any depth, keys of objects included."""
    if isinstance(value, str):
        return expand_text(value, scope)
    if isinstance(value, list):
        return [expand(item, scope) for item in value]
    if isinstance(value, dict):
        return {render(expand_text(key, scope)): expand(item, scope) for key, item in value.items()}
    return value
