"""Resources of a recipe, put on tasks; and which modules a task imports before it starts."""

from __future__ import annotations

import json
from typing import Any

from kfp import kubernetes

from schemas.recipe import Resources

PRELOAD_VARIABLE = "LONGSTRIDE_PRELOAD"
"""Read by the embedded executor, which imports these modules once a run and not once a task; a
cluster ignores it."""

CHECKPOINT_STORE_VARIABLE = "LONGSTRIDE_CHECKPOINT_STORE"
"""Read by `longstride.training.offsite`."""

LIGHT = "longstride.recipe.prerequisites,longstride.data.fingerprints,fsspec"
DATA = "longstride.data.corpus,longstride.data.sft,longstride.data.stage_rows,reasoning_gym"
TORCH = (
    "longstride.training.policy,longstride.training.language,longstride.training.curation,"
    "longstride.training.benchmarking,reasoning_gym,torch._dynamo"  # AdamW imports torch._dynamo
)
QUALITY = (
    "longstride.quality.gate,longstride.quality.expectations,great_expectations,reasoning_gym,"
    "longstride.model.checkpoints"  # a checkpoint's gate loads it in a fork
)
REPORT = "longstride.report.exit_handler"


def configure(task: Any, resources: Resources, preload: str, display_name: str = "") -> Any:
    """Put resources, retries, timeout, secrets and the import profile on a task; return it."""
    task.set_cpu_request(str(resources.cpu)).set_cpu_limit(str(resources.cpu))
    task.set_memory_request(resources.memory).set_memory_limit(resources.memory)
    task.set_env_variable(PRELOAD_VARIABLE, preload)
    task.set_env_variable("OMP_NUM_THREADS", str(resources.cpu))
    if resources.checkpoint_store:
        task.set_env_variable(CHECKPOINT_STORE_VARIABLE, resources.checkpoint_store)
    if resources.gpus:
        task.set_accelerator_type(resources.gpu_type).set_accelerator_limit(resources.gpus)
    if resources.retries:
        task.set_retry(num_retries=resources.retries, backoff_duration="30s", backoff_factor=2.0)
    kubernetes.set_timeout(task, resources.timeout_seconds)
    for label, value in sorted(resources.node_selector.items()):
        kubernetes.add_node_selector(task, label, value)
    for toleration in resources.tolerations:
        kubernetes.add_toleration(
            task,
            key=toleration.key,
            operator=toleration.operator,
            value=toleration.value or None,
            effect=toleration.effect,
        )
    if resources.shared_memory:
        kubernetes.empty_dir_mount(
            task,
            volume_name="shared-memory",
            mount_path="/dev/shm",
            medium="Memory",
            size_limit=resources.shared_memory,
        )
    for secret in resources.secrets:
        kubernetes.use_secret_as_env(
            task, secret_name=secret.secret, secret_key_to_env={secret.key: secret.variable}
        )
    if display_name:
        task.set_display_name(display_name)
    return task


def as_parameter(values: dict[str, Any]) -> str:
    """One JSON text per value, for a pipeline parameter."""
    return json.dumps(values, sort_keys=True, separators=(",", ":"))
