"""Recipe -> compiled IR, and the lint that every IR must pass."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from kfp import compiler

from longstride.errors import RecipeError
from longstride.store.files import read_text, write_text
from pipelines.deduplication import deduplicate
from pipelines.reasoning import reasoning_pipeline
from schemas.recipe import Recipe

SIZE_BUDGET_BYTES = 300_000
PARAMETER_LIMIT_BYTES = 10_000
PINNED_IMAGE = re.compile(r"^[^\s@]+@sha256:[0-9a-f]{64}$")


def compile_recipe(recipe: Recipe, out: Path) -> Path:
    """Compile a recipe to IR YAML, lint it, publish it atomically.

    Raises:
        RecipeError: The IR breaks a rule; names the rule and the task.
    """
    partial = out.with_name(f".{out.stem}.partial.yaml")
    partial.parent.mkdir(parents=True, exist_ok=True)
    compiler.Compiler().compile(reasoning_pipeline(recipe), str(partial))
    text = _shared(read_text(partial))
    partial.unlink()
    problems = lint(text)
    if problems:
        raise RecipeError(f"the compiled pipeline of {recipe.name}:\n  " + "\n  ".join(problems))
    write_text(out, text)
    return out


def _shared(text: str) -> str:
    """The same IR with equal definitions merged, under the compiler's own header."""
    header = [line for line in text.splitlines() if line.startswith("#")]
    spec, platform = list(yaml.safe_load_all(text))
    deduplicate(spec, platform)
    body = yaml.safe_dump_all([spec, platform], sort_keys=True, width=100)
    return "\n".join([*header, body])


def lint(text: str) -> list[str]:
    """Rules that every compiled pipeline keeps; returns those that are broken."""
    documents = list(yaml.safe_load_all(text))
    spec = documents[0]
    platform = documents[1] if len(documents) > 1 else {}
    problems = []
    if len(text.encode()) > SIZE_BUDGET_BYTES:
        problems.append(f"is {len(text.encode())} bytes, over the budget of {SIZE_BUDGET_BYTES}")
    problems += _parameter_problems(spec)
    timeouts = _timeouts(platform)
    for name, executor in spec["deploymentSpec"]["executors"].items():
        problems += [f"{name}: {p}" for p in _executor_problems(executor, name in timeouts)]
    for component in _components(spec):
        for name, task in component.get("dag", {}).get("tasks", {}).items():
            executor = _executor_of(spec, task)
            if "accelerator" in str(executor.get("container", {}).get("resources", {})) and (
                "retryPolicy" not in task
            ):
                problems.append(f"task {name}: asks for accelerators but has no retry policy")
    return problems


def _parameter_problems(spec: dict[str, Any]) -> list[str]:
    inputs = spec["root"].get("inputDefinitions", {}).get("parameters", {})
    problems = []
    for name, definition in inputs.items():
        default = definition.get("defaultValue")
        if definition.get("isOptional") and default is None:
            problems.append(f"parameter {name}: its default is None; use an empty value instead")
        if len(str(default).encode()) > PARAMETER_LIMIT_BYTES:
            problems.append(
                f"parameter {name}: its default has {len(str(default).encode())} bytes, over the "
                f"{PARAMETER_LIMIT_BYTES} that Kubeflow Pipelines stores; shorten the recipe"
            )
    return problems


def _executor_problems(executor: dict[str, Any], has_timeout: bool) -> list[str]:
    container = executor.get("container")
    if container is None:
        return []
    problems = []
    if not PINNED_IMAGE.match(container["image"]):
        problems.append(f"image {container['image']} is not pinned by digest")
    command = "\n".join(container.get("command", []))
    if "pip install" in command or "pip3 install" in command:
        problems.append("installs packages at run time; put them into the image")
    resources = container.get("resources", {})
    if "resourceCpuLimit" not in resources or "resourceMemoryLimit" not in resources:
        problems.append("has no CPU or memory limit")
    accelerator = resources.get("accelerator")
    if accelerator and not {"count", "resourceCount"} <= set(accelerator):
        problems.append("its accelerator lacks the fields that older or newer backends read")
    if not has_timeout:
        problems.append("has no timeout")
    return problems


def _timeouts(platform: dict[str, Any]) -> set[str]:
    executors = (
        platform.get("platforms", {})
        .get("kubernetes", {})
        .get("deploymentSpec", {})
        .get("executors", {})
    )
    return {name for name, value in executors.items() if "activeDeadlineSeconds" in value}


def _components(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [spec["root"], *spec.get("components", {}).values()]


def _executor_of(spec: dict[str, Any], task: dict[str, Any]) -> dict[str, Any]:
    component = spec["components"][task["componentRef"]["name"]]
    label = component.get("executorLabel")
    found: dict[str, Any] = spec["deploymentSpec"]["executors"].get(label, {})
    return found
