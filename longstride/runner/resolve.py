"""Where values come from: inputs of a task, items of a loop, outputs of a DAG."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from longstride.errors import PipelineError
from longstride.runner.expressions import select
from longstride.runner.ir import Component
from longstride.runner.nodes import Node
from longstride.runner.placeholders import PlaceholderScope, expand
from longstride.runner.state import CANCELED, FAILED, SUCCEEDED
from longstride.runner.values import (
    Artifact,
    JsonObject,
    Values,
    coerce,
    convert,
    render,
    whole_numbers,
)

_SCALARS = ("NUMBER_INTEGER", "NUMBER_DOUBLE", "STRING", "BOOLEAN")
# Codes of google.rpc.Code that PipelineTaskFinalStatus carries.
_CODE_CANCELLED = 1
_CODE_UNKNOWN = 2


class Unavailable(Exception):
    """A required input will never arrive, because what produces it was skipped."""


class _Missing:
    pass


_MISSING = _Missing()


def final_status(producer: Node, resource_name: str) -> JsonObject:
    """What a `PipelineTaskFinalStatus` input holds, with the real failing task and its error."""
    states = {FAILED: "FAILED", CANCELED: "CANCELLED"}
    status: JsonObject = {
        "state": states.get(producer.state, producer.state),
        "pipelineJobResourceName": resource_name,
        "pipelineTaskName": producer.spec.name,
    }
    if producer.state in states:
        code = _CODE_CANCELLED if producer.state == CANCELED else _CODE_UNKNOWN
        status["error"] = {"code": code, "message": producer.failure}
    return status


def _producer(node: Node, name: str) -> Node:
    if node.parent is None:
        raise PipelineError(f"{node.path}: the root has no upstream task {name!r}")
    return node.parent.children[name]


def _owner_inputs(node: Node) -> Values:
    return node.parent.inputs if node.parent is not None else Values()


def _from_producer(producer: Node, key: str, table: Mapping[str, Any], optional: bool) -> Any:
    if key in table:
        return table[key]
    if optional:
        return _MISSING
    if producer.state == SUCCEEDED and producer.kind == "container":
        raise PipelineError(f"{producer.path} succeeded but wrote no output {key!r}")
    raise Unavailable(f"{producer.path} has no output {key!r}")


def _source_value(node: Node, name: str, source: JsonObject, optional: bool, resource: str) -> Any:
    """The value of a parameter that is not a constant."""
    if ref := source.get("taskOutputParameter"):
        producer = _producer(node, ref["producerTask"])
        key = ref["outputParameterKey"]
        value = _from_producer(producer, key, producer.outputs.parameters, optional)
    elif parent := source.get("componentInputParameter"):
        value = _owner_inputs(node).parameters.get(parent, _MISSING)
        if value is _MISSING and not optional:
            raise PipelineError(f"{node.path}: input {name!r} needs {parent!r}, which has no value")
    elif ref := source.get("taskFinalStatus"):
        value = final_status(_producer(node, ref["producerTask"]), resource)
    else:
        raise PipelineError(f"{node.path}: input {name!r} has an unknown source {sorted(source)}")
    selector = source.get("parameterExpressionSelector")
    return select(selector, value) if selector and value is not _MISSING else value


def _constant(value: Any, parameter_type: str, scope: PlaceholderScope) -> Any:
    expanded = expand(whole_numbers(value), scope)
    if parameter_type == "STRING" and not isinstance(expanded, str) and expanded is not None:
        return render(expanded)
    return expanded


def _typed(node: Node, name: str, value: Any, kind: str) -> Any:
    """An input of its declared type.

    The compiler declares the items of a list without an element type as STRING, and hands them
    through groups under that name. So a group's inputs are converted but not checked, and a
    component's STRING input takes what arrives, as it does on a cluster.
    """
    if kind == "STRING" or node.component.dag is not None:
        return convert(value, kind)
    return coerce(value, kind, f"{node.path}: input {name!r}")


def _parameters(node: Node, named: Mapping[str, str]) -> tuple[JsonObject, JsonObject]:
    """Declared parameters, and all of them (the compiler adds undeclared ones for placeholders)."""
    declared = node.component.input_parameters
    scope: JsonObject = {}
    constants: dict[str, Any] = {}
    for name, source in node.spec.parameters.items():
        definition = declared.get(name)
        optional = definition is not None and definition.optional
        if "runtimeValue" in source:
            constants[name] = source["runtimeValue"].get("constant")
            continue
        value = _source_value(node, name, source, optional, named["pipeline_job_resource_name"])
        if value is not _MISSING and value is not None:
            kind = definition.type if definition else ""
            scope[name] = _typed(node, name, value, kind)
    texts = PlaceholderScope(named=named, parameters=dict(scope))
    for name, constant in constants.items():
        kind = declared[name].type if name in declared else ""
        if constant is not None:
            value = _constant(constant, kind, texts)
            scope[name] = _typed(node, name, value, kind)
    item = node.spec.iterator.item if node.spec.iterator else ""
    fill_defaults(node.component, scope, node.path, exempt=item)
    return {name: value for name, value in scope.items() if name in declared}, scope


def fill_defaults(component: Component, values: JsonObject, place: str, exempt: str = "") -> None:
    """Add defaults for parameters without a value.

    A container's list and object defaults are left to the Python function: only there are they
    written with the author's number types.

    Raises:
        PipelineError: a required parameter has no value.
    """
    for name, definition in component.input_parameters.items():
        if name in values or name == exempt:
            continue
        scalar = definition.type in _SCALARS
        if definition.has_default and (scalar or component.dag is not None):
            default = whole_numbers(definition.default)
            values[name] = coerce(default, definition.type, f"{place}: default of {name!r}")
        elif not definition.optional:
            raise PipelineError(f"{place}: required input {name!r} has no value")


def _artifacts(node: Node) -> dict[str, list[Artifact]]:
    found: dict[str, list[Artifact]] = {}
    for name, source in node.spec.artifacts.items():
        definition = node.component.input_artifacts.get(name)
        optional = definition is not None and definition.optional
        if ref := source.get("taskOutputArtifact"):
            producer = _producer(node, ref["producerTask"])
            key = ref["outputArtifactKey"]
            group = _from_producer(producer, key, producer.outputs.artifacts, optional)
        elif parent := source.get("componentInputArtifact"):
            group = _owner_inputs(node).artifacts.get(parent, _MISSING)
            if group is _MISSING and not optional:
                raise PipelineError(
                    f"{node.path}: input {name!r} needs artifact {parent!r}, not there"
                )
        else:
            raise PipelineError(
                f"{node.path}: input {name!r} has an unknown source {sorted(source)}"
            )
        if group is not _MISSING:
            found[name] = group
    return found


def resolve_inputs(node: Node, named: Mapping[str, str]) -> tuple[Values, JsonObject]:
    """The inputs of a task whose upstream tasks have ended.

    Args:
        node: the task.
        named: placeholders without arguments and their values.

    Returns:
        The declared inputs, and all parameters including the compiler's undeclared ones.

    Raises:
        Unavailable: a required input comes from a task that was skipped.
        PipelineError: a value is missing or of the wrong type.
    """
    parameters, scope = _parameters(node, named)
    return Values(parameters, _artifacts(node)), scope


def loop_items(node: Node) -> list[Any]:
    """The items a loop runs over: parameter values, or artifacts.

    Raises:
        PipelineError: what it should run over is no list.
    """
    iterator = node.spec.iterator
    if iterator is None:
        raise AssertionError(f"{node.path} is not a loop")
    if iterator.over == "artifact":
        return list(node.inputs.artifacts[iterator.source])
    if iterator.raw is not None:
        items = json.loads(iterator.raw)
    else:
        items = node.inputs.parameters.get(iterator.source, node.scope.get(iterator.source))
    if not isinstance(items, list):
        raise PipelineError(f"{node.path}: cannot loop over {items!r}, which is no list")
    return items


def iteration_inputs(loop: Node, index: int) -> Values:
    """Inputs of one pass through the loop's body: those of the loop, plus the item."""
    iterator = loop.spec.iterator
    if iterator is None:
        raise AssertionError(f"{loop.path} is not a loop")
    item = loop.items[index]
    if iterator.over == "artifact":
        return Values(
            dict(loop.inputs.parameters), {**loop.inputs.artifacts, iterator.item: [item]}
        )
    definition = loop.component.input_parameters.get(iterator.item)
    kind = definition.type if definition else ""
    value = convert(item, kind)
    return Values({**loop.inputs.parameters, iterator.item: value}, dict(loop.inputs.artifacts))


def _selected(node: Node, selectors: list[JsonObject], key: str, table: str) -> Any:
    """The output of the first producer that has one: the branch that ran."""
    for selector in selectors:
        producer = node.children[selector["producerSubtask"]]
        outputs = getattr(producer.outputs, table)
        if producer.state == SUCCEEDED and selector[key] in outputs:
            return outputs[selector[key]]
    return _MISSING


def dag_outputs(node: Node) -> Values:
    """Outputs of a DAG whose tasks have ended; what a skipped task would have made is left out."""
    found = Values()
    dag = node.component.dag
    if dag is None:
        raise AssertionError(f"{node.path} is not a DAG")
    for name, source in dag.output_parameters.items():
        selectors = (
            source["valueFromOneof"]["parameterSelectors"]
            if "valueFromOneof" in source
            else [source["valueFromParameter"]]
        )
        value = _selected(node, selectors, "outputParameterKey", "parameters")
        if value is not _MISSING:
            found.parameters[name] = value
    for name, source in dag.output_artifacts.items():
        group = _selected(node, source["artifactSelectors"], "outputArtifactKey", "artifacts")
        if group is not _MISSING:
            found.artifacts[name] = group
    return found


def loop_outputs(node: Node) -> Values:
    """Outputs of a loop: parameters as a list, one entry per pass; artifacts as one flat list."""
    found = Values()
    dag = node.component.dag
    if dag is None:
        raise AssertionError(f"{node.path} is not a loop over a DAG")
    passes = [child.outputs for child in node.children.values()]
    for name in dag.output_parameters:
        found.parameters[name] = [p.parameters[name] for p in passes if name in p.parameters]
    for name in dag.output_artifacts:
        found.artifacts[name] = [a for p in passes for a in p.artifacts.get(name, [])]
    return found
