"""One attempt at a task: what is written before the process starts and read after it ends."""

from __future__ import annotations

import hashlib
import json
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from longstride.errors import PipelineError
from longstride.runner.ir import Component, Executor
from longstride.runner.nodes import Node
from longstride.runner.options import ExecutorOptions
from longstride.runner.placeholders import PlaceholderScope, expand
from longstride.runner.pool import Grant
from longstride.runner.state import Attempt
from longstride.runner.values import (
    Artifact,
    JsonObject,
    Values,
    canonical,
    coerce,
    parse_output_file,
    render,
    whole_numbers,
)

EXECUTOR_DIED = "executor died"


@dataclass(frozen=True)
class RunPlace:
    """Where a run lives and what it is called."""

    run_dir: Path
    run_id: str
    named: Mapping[str, str]
    pipeline: str


@dataclass(frozen=True)
class Outcome:
    """What became of a task: a state, and what belongs to it."""

    state: str
    outputs: Values = field(default_factory=Values)
    absent: list[str] = field(default_factory=list)
    reason: str = ""
    error: str | None = None


def task_directory(place: RunPlace, path: str) -> Path:
    """The directory of a task: its path without "root", safe in any URL."""
    return place.run_dir / "tasks" / path.removeprefix("root/").replace("#", ".")


def named_placeholders(
    place: RunPlace, path: str, number: int, display_name: str
) -> dict[str, str]:
    """Placeholders of one attempt: those of the run, and the task's own name and id."""
    task_id = uuid.uuid5(uuid.NAMESPACE_URL, f"{place.run_id}/{path}/{number}")
    return {**place.named, "pipeline_task_name": display_name, "pipeline_task_uuid": str(task_id)}


def output_artifacts(component: Component, directory: Path) -> dict[str, list[Artifact]]:
    """Where a task is to write its artifacts."""
    folder = directory / "outputs"
    return {
        name: [Artifact(name, d.schema_title, d.schema_version, str(folder / name))]
        for name, d in component.output_artifacts.items()
    }


def executor_input(node: Node, directory: Path) -> JsonObject:
    """The ExecutorInput document of the public component contract."""
    files = directory / "parameters"
    outputs = output_artifacts(node.component, directory)
    inputs = {
        name: {"artifacts": [a.runtime() for a in g]} for name, g in node.inputs.artifacts.items()
    }
    return {
        "inputs": {"parameterValues": node.inputs.parameters, "artifacts": inputs},
        "outputs": {
            "parameters": {
                n: {"outputFile": str(files / n)} for n in node.component.output_parameters
            },
            "artifacts": {n: {"artifacts": [a.runtime() for a in g]} for n, g in outputs.items()},
            "outputFile": str(directory / "executor_output.json"),
        },
    }


def prepare(node: Node, executor: Executor, directory: Path) -> None:
    """Write everything the component needs into a directory that must not exist yet."""
    directory.mkdir(parents=True)
    (directory / "outputs").mkdir()
    text = json.dumps(executor_input(node, directory))
    (directory / "executor_input.json").write_text(text, encoding="utf-8")
    (directory / "ephemeral_component.py").write_text(executor.source, encoding="utf-8")
    (directory / "log.txt").touch()


def _named_by(parameter: JsonObject, fallback: str, owner: JsonObject | None) -> str | None:
    """A name that kfp-kubernetes takes from a constant or from a pipeline parameter."""
    if "componentInputParameter" in parameter:
        value = (owner or {}).get(parameter["componentInputParameter"])
        return None if value is None else str(value)
    return str(parameter.get("runtimeValue", {}).get("constant", fallback))


def secret_values(
    executor: Executor,
    options: ExecutorOptions,
    task: str,
    owner: JsonObject | None = None,
) -> dict[str, str]:
    """Environment variables that kfp-kubernetes takes from secrets and config maps.

    Args:
        executor: whose platform settings to read.
        options: where secrets and extra variables come from.
        task: name for messages.
        owner: parameters of the pipeline around the task; before a run starts they are not known,
            and secrets named by them are not checked.

    Raises:
        PipelineError: a secret that is not optional has no value here; names it and the key.
    """
    found: dict[str, str] = {}
    inherited = {**os.environ, **options.environment}
    entries = [(e, "secret") for e in executor.platform.get("secretAsEnv", [])]
    entries += [(e, "configMap") for e in executor.platform.get("configMapAsEnv", [])]
    for entry, kind in entries:
        fallback = str(entry.get(f"{kind}Name", ""))
        name = _named_by(entry.get(f"{kind}NameParameter", {}), fallback, owner)
        if name is None:
            continue
        for pair in entry.get("keyToEnv", []):
            key = pair.get(f"{kind}Key", "")
            variable = pair["envVar"]
            value = options.secrets.get(name, {}).get(key, inherited.get(variable))
            if value is not None:
                found[variable] = value
            elif not entry.get("optional", False):
                raise PipelineError(
                    f"task {task!r} needs {variable} from key {key!r} of {kind} {name!r}, which "
                    f"has no value here; pass it in ExecutorOptions.secrets or set {variable}"
                )
    return found


def mounts(
    executor: Executor, place: RunPlace, directory: Path, owner: JsonObject
) -> dict[str, str]:
    """Directories that stand in for volumes: mount path to directory.

    An emptyDir lives as long as the attempt; a volume claim is shared by the runs beside this one.
    """
    found: dict[str, str] = {}
    for entry in executor.platform.get("emptyDirMounts", []):
        if entry["mountPath"] != "/dev/shm":
            found[entry["mountPath"]] = str(directory / "volumes" / entry["volumeName"])
    for entry in executor.platform.get("pvcMount", []):
        name = _named_by(entry.get("pvcNameParameter", {}), str(entry.get("constant", "")), owner)
        found[entry["mountPath"]] = str(place.run_dir.parent / ".volumes" / (name or "claim"))
    for target in found.values():
        Path(target).mkdir(parents=True, exist_ok=True)
    return found


def environment(
    node: Node, executor: Executor, place: RunPlace, options: ExecutorOptions, directory: Path
) -> dict[str, str]:
    """Variables that this attempt adds to what its fork server has."""
    scope = PlaceholderScope(
        named=named_placeholders(place, node.path, node.attempts, node.spec.display_name),
        parameters=node.scope,
        input_artifacts=node.inputs.artifacts,
        output_artifacts=output_artifacts(node.component, directory),
    )
    declared = {name: render(expand(value, scope)) for name, value in executor.env.items()}
    owner = node.parent.inputs.parameters if node.parent else {}
    secrets = secret_values(executor, options, node.spec.name, owner)
    volumes = mounts(executor, place, directory, owner)
    return {
        **options.environment,
        **secrets,
        **declared,
        **({"LONGSTRIDE_MOUNTS": json.dumps(volumes)} if volumes else {}),
        "LONGSTRIDE_RUN_DIR": str(place.run_dir),
        "LONGSTRIDE_TASK_PATH": node.path,
        "LONGSTRIDE_PROGRESS_FILE": str(directory / "progress.json"),
        # Outlives the attempt: a task that is retried, or resumed, goes on from what lies there.
        "LONGSTRIDE_RESUME_DIR": str(task_directory(place, node.path) / "in-progress"),
    }


def task_seed(node: Node, executor: Executor) -> int:
    """A seed from code and parameters: what the cache takes for one task draws one sequence."""
    identity = canonical([executor.function, executor.source, node.inputs.parameters])
    return int.from_bytes(hashlib.sha256(identity.encode()).digest()[:6], "big")


def fork_request(
    node: Node,
    executor: Executor,
    place: RunPlace,
    options: ExecutorOptions,
    grant: Grant,
    attempt: Attempt,
) -> JsonObject:
    """The message that asks a fork server for this attempt.

    Raises:
        PipelineError: a secret has no value.
    """
    variables = environment(node, executor, place, options, Path(attempt.directory))
    variables.setdefault("OMP_NUM_THREADS", str(grant.cpus))
    if options.gpu_slots:
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(grant.gpus)
    return {
        "id": f"{node.path}@{attempt.number}",
        "directory": attempt.directory,
        "function": executor.function,
        "environment": variables,
        "threads": grant.cpus,
        "seed": task_seed(node, executor),
    }


def import_artifact(node: Node, executor: Executor, named: Mapping[str, str]) -> Values:
    """The output of an importer task.

    Raises:
        PipelineError: the URI is a local path where nothing is.
    """
    scope = PlaceholderScope(named=named, parameters=node.scope)
    source = executor.importer.get("artifactUri", {})
    parameter = source.get("runtimeParameter")
    value = node.scope.get(parameter) if parameter else expand(source.get("constant", ""), scope)
    uri = str(value).removeprefix("file://")
    metadata = expand(whole_numbers(executor.importer.get("metadata", {})), scope)
    made = {}
    for name, definition in node.component.output_artifacts.items():
        artifact = Artifact(name, definition.schema_title, definition.schema_version, uri, metadata)
        if artifact.local_path is not None and not artifact.local_path.exists():
            raise PipelineError(f"{node.path}: cannot import {uri}: no such file or folder")
        made[name] = [artifact]
    return Values({}, made)


def _output_parameters(
    component: Component, written: JsonObject, directory: Path, path: str
) -> JsonObject:
    found: JsonObject = {}
    for name, definition in component.output_parameters.items():
        place = f"{path}: output {name!r}"
        file = directory / "parameters" / name
        if name in written:
            found[name] = coerce(written[name], definition.type, place)
        elif file.is_file():
            found[name] = parse_output_file(
                file.read_text(encoding="utf-8"), definition.type, place
            )
    return found


def read_outputs(node: Node, directory: Path) -> tuple[Values, list[str]]:
    """Read what a finished component left behind.

    Returns:
        The outputs, and the names of artifacts of which no file was written (metadata only).

    Raises:
        PipelineError: the component ended well but its output document is missing or malformed.
    """
    document = directory / "executor_output.json"
    try:
        written = json.loads(document.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise PipelineError(f"{node.path} ended without writing {document}") from error
    except json.JSONDecodeError as error:
        raise PipelineError(f"{document} is not JSON: {error}") from error
    outputs = Values(
        _output_parameters(node.component, written.get("parameterValues", {}), directory, node.path)
    )
    absent: list[str] = []
    reported = written.get("artifacts", {})
    for name, group in output_artifacts(node.component, directory).items():
        planned = group[0]
        listed = reported.get(name, {}).get("artifacts", [{}])
        made = [
            Artifact(
                name=name,
                schema_title=planned.schema_title,
                schema_version=planned.schema_version,
                uri=entry.get("custom_path") or entry.get("uri") or planned.uri,
                metadata=entry.get("metadata", {}),
            )
            for entry in listed
        ]
        outputs.artifacts[name] = made
        if any(a.local_path is not None and not a.local_path.exists() for a in made):
            absent.append(name)
    return outputs, absent


def read_error(directory: Path, exit_code: int) -> str:
    """What went wrong, as `Type: message` when the component raised."""
    report = directory / "error.json"
    if report.is_file():
        error = json.loads(report.read_text(encoding="utf-8"))
        return f"{error['type']}: {error['message']}" if error["message"] else str(error["type"])
    if exit_code == -9:
        return "killed by SIGKILL; most often the machine ran out of memory"
    if exit_code < 0:
        return f"killed by signal {-exit_code}"
    return f"the process ended with exit code {exit_code} and no Python error; see its log"
