"""The training engine, as data: plain torch in one process, or DeepSpeed in one or several."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Contract


class _Engine(Contract):
    """What every engine honours."""

    microbatch_tokens: int = Field(default=4096, ge=1)
    """Tokens of one forward and backward pass; longer rows pass one at a time. Gradients add up."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Arithmetic of the body. Weights, gradients and moments stay fp32; so do head and router.
    CPUs without AMX or AVX512 multiply bf16 many times slower than fp32."""
    activation_checkpointing: bool = False
    """Keep only each block's input and compute the rest again in the backward pass."""
    checkpoint_every_steps: int = Field(default=100, ge=0)
    """Optimizer steps between in-progress checkpoints, from which a killed stage or RL round goes
    on; a round also keeps one before each generation batch. 0 keeps none."""


class TorchEngine(_Engine):
    """Plain torch in the process of the task, on the CPU."""

    kind: Literal["torch"] = "torch"
    """Discriminator."""

    @property
    def processes(self) -> int:
        """Processes that share a step."""
        return 1


class DeepSpeedEngine(_Engine):
    """DeepSpeed with ZeRO sharding, in `ranks` processes that share each step's rows."""

    kind: Literal["deepspeed"] = "deepspeed"
    """Discriminator."""
    ranks: int = Field(default=1, ge=1, le=4096)
    """Processes that train together, each on its share of a step's microbatches."""
    zero_stage: Literal[0, 1, 2, 3] = 1
    """What is sharded: 0 nothing, 1 optimizer state, 2 also gradients, 3 also weights."""
    offload_optimizer: bool = False
    """Keep optimizer state, and its step, on the CPU (ZeRO 1 to 3)."""
    persistent_elements: int | None = Field(default=None, ge=0)
    """ZeRO 3: smaller parameters stay whole on every rank; none is DeepSpeed's 100000."""
    rendezvous_seconds: int = Field(default=300, ge=1)
    """How long a rank waits for the others to start."""

    @property
    def processes(self) -> int:
        """Processes that share a step."""
        return self.ranks

    @model_validator(mode="after")
    def _options_fit_the_stage(self) -> Self:
        if self.offload_optimizer and self.zero_stage == 0:
            raise ValueError(
                "offload_optimizer=true needs a sharded optimizer, but zero_stage=0 has none; "
                "choose zero_stage 1, 2 or 3"
            )
        if self.persistent_elements is not None and self.zero_stage != 3:
            raise ValueError(
                f"persistent_elements={self.persistent_elements} means something only with "
                f"zero_stage=3, not with zero_stage={self.zero_stage}; remove it"
            )
        return self


EngineConfig = Annotated[TorchEngine | DeepSpeedEngine, Field(discriminator="kind")]
