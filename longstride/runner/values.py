"""Parameter values and artifacts as they travel between tasks.

Everything here is JSON. Nothing passes through a protobuf `Struct`, whose only number is a double:
an int that a component returned is an int wherever it arrives.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from longstride.errors import PipelineError

JsonObject = dict[str, Any]


@dataclass(frozen=True)
class Artifact:
    """One artifact: where it lies and what is known about it."""

    name: str
    schema_title: str
    schema_version: str
    uri: str
    metadata: JsonObject = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """The form stored in the state database."""
        return {
            "name": self.name,
            "type": self.schema_title,
            "version": self.schema_version,
            "uri": self.uri,
            "metadata": self.metadata,
        }

    @classmethod
    def from_json(cls, data: JsonObject) -> Artifact:
        """Inverse of `to_json`."""
        return cls(data["name"], data["type"], data["version"], data["uri"], data["metadata"])

    def runtime(self) -> JsonObject:
        """The RuntimeArtifact of an ExecutorInput."""
        kind = {"schemaTitle": self.schema_title, "schemaVersion": self.schema_version}
        return {"name": self.name, "uri": self.uri, "type": kind, "metadata": self.metadata}

    @property
    def local_path(self) -> Path | None:
        """Where the artifact lies on this machine; None when its URI is remote."""
        if self.uri.startswith("file://"):
            return Path(self.uri[len("file://") :])
        return None if "://" in self.uri else Path(self.uri)


@dataclass
class Values:
    """What goes into a task or comes out of it."""

    parameters: JsonObject = field(default_factory=dict)
    artifacts: dict[str, list[Artifact]] = field(default_factory=dict)

    def to_json(self) -> JsonObject:
        """The form stored in the state database."""
        artifacts = {name: [a.to_json() for a in group] for name, group in self.artifacts.items()}
        return {"parameters": self.parameters, "artifacts": artifacts}

    @classmethod
    def from_json(cls, data: JsonObject) -> Values:
        """Inverse of `to_json`."""
        artifacts = {
            name: [Artifact.from_json(a) for a in group]
            for name, group in data["artifacts"].items()
        }
        return cls(data["parameters"], artifacts)


def canonical(value: Any) -> str:
    """One text per JSON value, whatever the order of its keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def whole_numbers(value: Any) -> Any:
    """Turn whole floats of an IR constant into ints, as the cluster's launcher prints them.

    A constant in compiled IR went through a `Struct`: `3` was written as `3.0`, and which of the
    two the author wrote is lost. Declared number types are restored afterwards by `coerce`.
    """
    if isinstance(value, float) and math.isfinite(value) and value.is_integer():
        return int(value)
    if isinstance(value, list):
        return [whole_numbers(item) for item in value]
    if isinstance(value, dict):
        return {key: whole_numbers(item) for key, item in value.items()}
    return value


_EXPECTED: dict[str, tuple[type, ...]] = {
    "NUMBER_INTEGER": (int,),
    "NUMBER_DOUBLE": (int, float),
    "STRING": (str,),
    "BOOLEAN": (bool,),
    "LIST": (list,),
    "STRUCT": (dict, list, str, int, float, bool),
}


def convert(value: Any, parameter_type: str) -> Any:
    """Turn whole doubles into ints and ints into doubles where the declared type asks for it."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if parameter_type == "NUMBER_INTEGER" and is_number and float(value).is_integer():
        return int(value)
    if parameter_type == "NUMBER_DOUBLE" and is_number:
        return float(value)
    return value


def coerce(value: Any, parameter_type: str, place: str) -> Any:
    """Check a value against its declared IR type; whole doubles and ints convert into each other.

    Raises:
        PipelineError: the value is of another type; names the place, the value and the type.
    """
    expected = _EXPECTED.get(parameter_type)
    if expected is None or value is None:
        return value
    value = convert(value, parameter_type)
    wrong_bool = isinstance(value, bool) and parameter_type not in ("BOOLEAN", "STRUCT")
    if wrong_bool or not isinstance(value, expected):
        raise PipelineError(
            f"{place}: {value!r} is not a {parameter_type}; pass a value of that type"
        )
    return value


def parse_output_file(text: str, parameter_type: str, place: str) -> Any:
    """Read a parameter that a component wrote to its output file.

    Raises:
        PipelineError: the text does not parse as the declared type.
    """
    if parameter_type == "STRING":
        return text
    try:
        value = json.loads(text)
    except json.JSONDecodeError:
        lowered = text.strip().lower()
        if parameter_type == "BOOLEAN" and lowered in ("true", "false"):
            return lowered == "true"
        raise PipelineError(
            f"{place}: output file holds {text[:80]!r}, not a {parameter_type}"
        ) from None
    return coerce(value, parameter_type, place)


def render(value: Any) -> str:
    """A value as text inside a larger string: strings as they are, everything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
