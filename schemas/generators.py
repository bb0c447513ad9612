"""What samples during RL, curation and benchmarks: the training process itself, or vLLM."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Contract
from schemas.model import ModelConfig

SMALLEST_VLLM_HEAD = 32
"""Smallest attention head that vLLM has kernels for."""
VLLM_TEMPERATURES = (0.01, 2.0)
"""Temperatures that vLLM accepts as they are, beside 0; it silently raises lower ones to 0.01."""


class NativeGeneratorConfig(Contract):
    """Sampling inside the training process, on the trainer's own weights."""

    kind: Literal["native"] = "native"
    """Discriminator."""


class VllmGeneratorConfig(Contract):
    """Sampling by a vLLM server, for the dense models that vLLM can run."""

    kind: Literal["vllm"] = "vllm"
    """Discriminator."""
    python: str | None = Field(default=None, min_length=1)
    """Interpreter of the environment that holds vLLM; by default LONGSTRIDE_VLLM_PYTHON, or what
    `make setup-vllm` made: .venv-vllm in the working directory or beside our own environment."""
    url: str | None = Field(default=None, pattern=r"^https?://[^/\s]+(/\S*)?$")
    """A server that runs already, in place of one started by each task. It must be reachable by
    trusted processes only: it runs in vLLM's development mode, which can load any file."""
    weights_directory: str | None = Field(default=None, min_length=1)
    """Folder that hands weights over; by default in shared memory where they fit, else in the
    temporary folder. A server at a `url` must see it under the same path."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Type that vLLM computes in; bfloat16 products are slow on CPUs without AVX512 or AMX."""
    kv_cache_gib: int = Field(default=1, ge=1)
    """Memory for keys and values on a CPU, in GiB."""
    gpu_memory_share: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Share of an accelerator that vLLM takes; the trainer needs the rest."""
    tensor_parallel: int = Field(default=1, ge=1)
    """Accelerators that one server spreads over."""
    arguments: list[str] = Field(default_factory=list)
    """Further arguments of vLLM's server, as they are."""
    probe_tolerance: float = Field(default=1e-3, gt=0.0)
    """Largest difference of a log-probability between sampler and trainer, in nats, on the
    sequence that is scored after every weight update. A bfloat16 sampler needs more."""
    start_seconds: float = Field(default=900.0, gt=0.0)
    """Longest wait for a server to come up."""
    generate_seconds: float = Field(default=3600.0, gt=0.0)
    """Longest time of one generation wave."""
    reload_seconds: float = Field(default=600.0, gt=0.0)
    """Longest time of one weight update, and of the probe after it."""

    @model_validator(mode="after")
    def _a_running_server_shares_a_folder(self) -> Self:
        if self.url is not None and self.weights_directory is None:
            raise ValueError(
                f"url={self.url} needs weights_directory: name a folder that this process and the "
                "server see under the same path"
            )
        return self


GeneratorConfig = Annotated[
    NativeGeneratorConfig | VllmGeneratorConfig,
    Field(discriminator="kind"),
]


def vllm_obstacle(model: ModelConfig) -> str | None:
    """Return why vLLM cannot run an architecture, as the end of a sentence; None when it can."""
    obstacles = {
        f"has {model.block_types.count('lightning')} lightning layers, and vLLM dropped such "
        "models after 0.23": "lightning" in model.block_types,
        f"has residual={model.residual}, and vLLM's dense models are prenorm": model.residual
        != "prenorm",
        f"has num_experts={model.num_experts}, and vLLM is given dense models only": (
            model.num_experts > 1
        ),
        f"rotates {model.rotary_dim} of head_dim={model.head_dim} dimensions, and llama and qwen "
        "rotate all": model.rotary_dim != model.head_dim,
        "has both qkv_bias and qk_norm, and neither llama nor qwen does": model.qkv_bias
        and model.qk_norm,
        f"has head_dim={model.head_dim}, and {SMALLEST_VLLM_HEAD} is the smallest that vLLM's "
        "attention kernels have": model.head_dim < SMALLEST_VLLM_HEAD,
    }
    return next((obstacle for obstacle, present in obstacles.items() if present), None)
