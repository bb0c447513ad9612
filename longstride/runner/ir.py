"""Compiled pipelines: the typed picture of a KFP v2 IR document that the executor works from."""

from __future__ import annotations

import hashlib
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from longstride.errors import PipelineError
from longstride.runner.values import JsonObject, canonical

# The C loader reads a 300 kB document in a twentieth of the time; it builds the same safe types.
_SAFE_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

ALL_COMPLETED = "ALL_UPSTREAM_TASKS_COMPLETED"
CLUSTER_HINT = "run it on a cluster: longstride submit --host URL"


@dataclass(frozen=True)
class ParameterDef:
    """A declared input or output parameter."""

    type: str
    optional: bool
    has_default: bool
    default: Any


@dataclass(frozen=True)
class ArtifactDef:
    """A declared input or output artifact."""

    schema_title: str
    schema_version: str
    optional: bool
    is_list: bool


@dataclass(frozen=True)
class Executor:
    """How a component runs: a lightweight Python function, or an importer."""

    label: str
    kind: Literal["python", "importer"]
    image: str
    function: str
    source: str
    env: dict[str, str]
    resources: JsonObject
    importer: JsonObject
    platform: JsonObject


@dataclass(frozen=True)
class RetryPolicy:
    """Retries after a failed attempt; delays in seconds."""

    max_retries: int = 0
    delay: float = 0.0
    factor: float = 2.0
    max_delay: float = 3600.0

    def wait(self, failures: int) -> float:
        """Seconds to wait after the given number of failures (1 for the first)."""
        return float(min(self.delay * self.factor ** (failures - 1), self.max_delay))


@dataclass(frozen=True)
class Iterator:
    """A loop over a list of parameters or of artifacts."""

    item: str
    over: Literal["parameter", "artifact"]
    source: str
    raw: str | None
    parallelism: int


@dataclass(frozen=True)
class TaskSpec:
    """One task of a DAG."""

    name: str
    display_name: str
    component: str
    depends_on: tuple[str, ...]
    parameters: JsonObject
    artifacts: JsonObject
    condition: str
    strategy: str
    iterator: Iterator | None
    retry: RetryPolicy
    cacheable: bool
    cache_key: str

    @property
    def runs_after_failure(self) -> bool:
        """True when the task waits for upstream tasks to end, not to succeed."""
        return self.strategy == ALL_COMPLETED

    @property
    def is_exit_task(self) -> bool:
        """True for the task of a `dsl.ExitHandler`: it also runs after a cancel."""
        watches = any("taskFinalStatus" in source for source in self.parameters.values())
        guards = any(name.startswith("exit-handler-") for name in self.depends_on)
        return self.runs_after_failure and (watches or guards)


@dataclass(frozen=True)
class Dag:
    """Tasks and how their outputs become the outputs of the DAG."""

    tasks: dict[str, TaskSpec]
    output_parameters: JsonObject
    output_artifacts: JsonObject


@dataclass(frozen=True)
class Component:
    """A component: its interface and either a DAG or an executor."""

    name: str
    input_parameters: dict[str, ParameterDef]
    input_artifacts: dict[str, ArtifactDef]
    output_parameters: dict[str, ParameterDef]
    output_artifacts: dict[str, ArtifactDef]
    dag: Dag | None
    executor: str | None


@dataclass(frozen=True)
class PipelineIR:
    """A compiled pipeline that passed the static checks."""

    name: str
    root: Component
    components: dict[str, Component]
    executors: dict[str, Executor]
    default_root: str
    text: str
    digest: str
    notes: tuple[str, ...] = field(default=())

    def component(self, name: str) -> Component:
        """The component with that name."""
        return self.components[name]

    @property
    def profiles(self) -> tuple[str, ...]:
        """Import profiles named by the components, the light one ("") first."""
        named = {executor.env.get("LONGSTRIDE_PRELOAD", "") for executor in self.executors.values()}
        return tuple(sorted(named | {""}))


_DURATION = re.compile(r"(\d+(?:\.\d+)?)s$")


def _seconds(text: str) -> float:
    match = _DURATION.match(text)
    if match is None:
        raise PipelineError(f"retry policy: {text!r} is not a duration such as '30s'")
    return float(match.group(1))


def _parameter_defs(definitions: JsonObject) -> dict[str, ParameterDef]:
    return {
        name: ParameterDef(
            type=raw.get("parameterType", ""),
            optional=bool(raw.get("isOptional")) or "defaultValue" in raw,
            has_default="defaultValue" in raw,
            default=raw.get("defaultValue"),
        )
        for name, raw in definitions.get("parameters", {}).items()
    }


def _artifact_defs(definitions: JsonObject) -> dict[str, ArtifactDef]:
    return {
        name: ArtifactDef(
            schema_title=raw.get("artifactType", {}).get("schemaTitle", "system.Artifact"),
            schema_version=raw.get("artifactType", {}).get("schemaVersion", "0.0.1"),
            optional=bool(raw.get("isOptional")),
            is_list=bool(raw.get("isArtifactList")),
        )
        for name, raw in definitions.get("artifacts", {}).items()
    }


def _iterator(raw: JsonObject) -> Iterator | None:
    parallelism = int(raw.get("iteratorPolicy", {}).get("parallelismLimit", 0))
    if spec := raw.get("parameterIterator"):
        items = spec["items"]
        return Iterator(
            spec["itemInput"],
            "parameter",
            items.get("inputParameter", ""),
            items.get("raw"),
            parallelism,
        )
    if spec := raw.get("artifactIterator"):
        source = spec["items"]["inputArtifact"]
        return Iterator(spec["itemInput"], "artifact", source, None, parallelism)
    return None


def _retry(raw: JsonObject) -> RetryPolicy:
    policy = raw.get("retryPolicy", {})
    return RetryPolicy(
        max_retries=int(policy.get("maxRetryCount", 0)),
        delay=_seconds(policy.get("backoffDuration", "0s")),
        factor=float(policy.get("backoffFactor", 2.0)),
        max_delay=_seconds(policy.get("backoffMaxDuration", "3600s")),
    )


def _task(name: str, raw: JsonObject) -> TaskSpec:
    inputs = raw.get("inputs", {})
    trigger = raw.get("triggerPolicy", {})
    caching = raw.get("cachingOptions", {})
    return TaskSpec(
        name=name,
        display_name=raw.get("taskInfo", {}).get("name", name),
        component=raw["componentRef"]["name"],
        depends_on=tuple(raw.get("dependentTasks", ())),
        parameters=inputs.get("parameters", {}),
        artifacts=inputs.get("artifacts", {}),
        condition=trigger.get("condition", ""),
        strategy=trigger.get("strategy", ""),
        iterator=_iterator(raw),
        retry=_retry(raw),
        cacheable=bool(caching.get("enableCache", False)),
        cache_key=caching.get("cacheKey", ""),
    )


def _component(name: str, raw: JsonObject) -> Component:
    dag = None
    if "dag" in raw:
        outputs = raw["dag"].get("outputs", {})
        tasks = {key: _task(key, task) for key, task in raw["dag"].get("tasks", {}).items()}
        dag = Dag(tasks, outputs.get("parameters", {}), outputs.get("artifacts", {}))
    inputs, outs = raw.get("inputDefinitions", {}), raw.get("outputDefinitions", {})
    return Component(
        name=name,
        input_parameters=_parameter_defs(inputs),
        input_artifacts=_artifact_defs(inputs),
        output_parameters=_parameter_defs(outs),
        output_artifacts=_artifact_defs(outs),
        dag=dag,
        executor=raw.get("executorLabel"),
    )


_PACKAGES = re.compile(r"pip install\b([^&|;\n]*)")
_QUOTED = re.compile(r"'([^']*)'")


def _runtime_packages(command: list[str]) -> list[str]:
    """Packages that the compiled command would install before the component starts, kfp apart."""
    names: list[str] = []
    for script in command:
        if "kfp.dsl.executor_main" in script:
            break
        for arguments in _PACKAGES.findall(script):
            names.extend(_QUOTED.findall(arguments))
    harmless = ("kfp==", "--", "typing-extensions>=")
    return [name for name in names if not name.startswith(harmless)]


def _python_executor(
    label: str, task: str, container: JsonObject, platform: JsonObject
) -> Executor:
    command, args = container.get("command", []), container.get("args", [])
    launcher = next((i for i, part in enumerate(command) if "ephemeral_component.py" in part), None)
    if launcher is None:
        kind = "a target_image component" if "kfp.dsl.executor_main" in command else "a container"
        raise PipelineError(
            f"task {task!r} is {kind} (image {container.get('image', '?')!r}); the embedded "
            f"executor runs lightweight Python components only. Rewrite it, or {CLUSTER_HINT}"
        )
    packages = _runtime_packages(command)
    if packages:
        raise PipelineError(
            f"task {task!r} installs packages when it starts: {', '.join(packages)}. Install them "
            f"in this environment and compile without packages_to_install, or {CLUSTER_HINT}"
        )
    return Executor(
        label=label,
        kind="python",
        image=container.get("image", ""),
        function=args[args.index("--function_to_execute") + 1],
        source=command[launcher + 1],
        env={entry["name"]: str(entry.get("value", "")) for entry in container.get("env", [])},
        resources=container.get("resources", {}),
        importer={},
        platform=platform,
    )


def _executor(label: str, task: str, raw: JsonObject, platform: JsonObject) -> Executor:
    if "importer" in raw:
        return Executor(label, "importer", "", "", "", {}, {}, raw["importer"], platform)
    if "container" not in raw:
        raise PipelineError(
            f"task {task!r} has executor {sorted(raw)}, which is not known; {CLUSTER_HINT}"
        )
    return _python_executor(label, task, raw["container"], platform)


def _documents(source: str | Path) -> tuple[list[JsonObject], str]:
    text = source.read_text(encoding="utf-8") if isinstance(source, Path) else source
    if isinstance(source, str) and "\n" not in source:
        text = Path(source).read_text(encoding="utf-8")
    try:
        documents = [d for d in yaml.load_all(text, Loader=_SAFE_LOADER) if d]
    except yaml.YAMLError as error:
        raise PipelineError(f"the pipeline is not valid YAML: {error}") from error
    if not documents or not isinstance(documents[0], dict):
        raise PipelineError(
            "the pipeline file is empty or not a mapping; compile it with kfp's compiler"
        )
    if "pipeline_spec" in documents[0]:
        documents = [documents[0]["pipeline_spec"], documents[0].get("platform_spec") or {}]
    return documents, text


def _platform(documents: list[JsonObject]) -> JsonObject:
    for document in documents[1:]:
        kubernetes: JsonObject = document.get("platforms", {}).get("kubernetes", {})
        if kubernetes:
            return kubernetes
    return {}


# Settings that place a pod on a node; one machine has nowhere else to go.
_IGNORED = {
    "tolerations",
    "nodeSelector",
    "nodeAffinity",
    "podAffinity",
    "podMetadata",
    "imagePullPolicy",
    "imagePullSecret",
    "securityContext",
    "fieldPathAsEnv",
    "enabledSharedMemory",
}


def _notes(platform: dict[str, JsonObject]) -> tuple[str, ...]:
    ignored = {key for settings in platform.values() for key in settings if key in _IGNORED}
    if not ignored:
        return ()
    return (f"Kubernetes settings without a meaning on one machine: {', '.join(sorted(ignored))}",)


def _parse(documents: list[JsonObject], text: str) -> PipelineIR:
    spec = documents[0]
    version = str(spec.get("schemaVersion", ""))
    if "root" not in spec or not version.startswith("2."):
        raise PipelineError(
            f"not a compiled KFP v2 pipeline (schemaVersion {version or 'missing'!r}); "
            "compile it with kfp.compiler.Compiler"
        )
    components = {name: _component(name, raw) for name, raw in spec.get("components", {}).items()}
    root = _component("root", spec["root"])
    used_by = {
        task.component: task.name
        for component in [root, *components.values()]
        if component.dag
        for task in component.dag.tasks.values()
    }
    label_task = {c.executor: used_by.get(n, n) for n, c in components.items() if c.executor}
    platform = _platform(documents).get("deploymentSpec", {}).get("executors", {})
    executors = {
        label: _executor(label, label_task[label], raw, platform.get(label, {}))
        for label, raw in spec.get("deploymentSpec", {}).get("executors", {}).items()
        if label in label_task
    }
    return PipelineIR(
        name=spec.get("pipelineInfo", {}).get("name", "pipeline"),
        root=root,
        components=components,
        executors=executors,
        default_root=spec.get("defaultPipelineRoot", ""),
        text=text,
        digest=hashlib.sha256(canonical(documents).encode()).hexdigest(),
        notes=_notes(platform),
    )


def load_ir(source: str | Path) -> PipelineIR:
    """Read compiled IR and check it.

    Args:
        source: a path, or the YAML text itself; one document (pipeline spec) or two (with the
            platform spec of kfp-kubernetes).

    Raises:
        PipelineError: the text is no v2 IR, refers to something that does not exist, holds a
            condition outside the language, or needs a container.
    """
    from longstride.runner.checks import check_ir

    documents, text = _documents(source)
    try:
        ir = _parse(documents, text)
    except (KeyError, AttributeError, TypeError, IndexError) as error:
        raise PipelineError(
            f"the compiled pipeline is malformed: {type(error).__name__} {error}"
        ) from error
    check_ir(ir)
    return ir


_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)(m?)$")


def cpu_quantity(value: Any, place: str) -> float:
    """CPU cores of a Kubernetes quantity such as `2`, `"500m"` or `1.5`.

    Raises:
        PipelineError: the text is no such quantity.
    """
    match = _QUANTITY.match(str(value).strip())
    if match is None:
        raise PipelineError(f"{place}: {value!r} is not a number of CPUs such as '2' or '500m'")
    return float(match.group(1)) / (1000 if match.group(2) else 1)


def cpu_slots(resources: JsonObject, place: str) -> int:
    """CPU slots a task asks for: its limit, else its request, else one; never less than one."""
    for key in ("resourceCpuLimit", "cpuLimit", "resourceCpuRequest", "cpuRequest"):
        if resources.get(key):
            return max(1, math.ceil(cpu_quantity(resources[key], place)))
    return 1


def gpu_slots(resources: JsonObject, place: str) -> int:
    """GPU slots a task asks for.

    Raises:
        PipelineError: the count is not a whole number.
    """
    accelerator = resources.get("accelerator", {})
    count = accelerator.get("resourceCount") or accelerator.get("count") or 0
    try:
        return int(count)
    except ValueError as error:
        raise PipelineError(f"{place}: {count!r} is not a number of accelerators") from error
