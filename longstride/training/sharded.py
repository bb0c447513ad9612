"""The DeepSpeed engine: ZeRO 0 to 3 in one or several ranks.

DeepSpeed gets fp32 weights and torch's own AdamW, so that no C++ is compiled at run time and eps
is what the recipe says. bf16 is arithmetic (see `arithmetic`), not DeepSpeed's bf16 mode: that mode
casts every parameter, the fp32 head and router included, and ZeRO 3 cannot hold two types at once.
"""

from __future__ import annotations

import importlib
import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from longstride.model.hybrid import HybridModel
from longstride.training.engine import (
    MOMENTS,
    Accept,
    Compute,
    FiniteGuard,
    Result,
    adamw,
    moments_of,
    prepare,
    replica,
)
from longstride.training.ranks import Ranks
from longstride.training.snapshots import Snapshot, restore_snapshot, state_tensors, take_snapshot
from schemas.engine import DeepSpeedEngine as DeepSpeedConfig
from schemas.stages import OptimizerConfig


class _Step(nn.Module):
    """The module that DeepSpeed sees: whatever is computed with the model runs inside it."""

    def __init__(self, model: HybridModel) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[HybridModel], Any]) -> Any:
        return compute(self.model)


class _ClippedAdamW(torch.optim.AdamW):
    """AdamW for ZeRO 0, where DeepSpeed neither measures the norm nor skips bad steps in fp32."""

    clip = math.inf
    norm = 0.0
    wanted: Accept = staticmethod(math.isfinite)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        parameters = [p for group in self.param_groups for p in group["params"]]
        total = nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None])
        self.norm = float(total)
        if self.wanted(self.norm):
            nn.utils.clip_grads_with_norm_(parameters, self.clip, total)
            super().step(closure)


class _AskingAdamW(torch.optim.AdamW):
    """AdamW under ZeRO 1 to 3, called once a group of parameters when the norm is known."""

    wanted: Callable[[], bool] = staticmethod(lambda: True)

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        if self.wanted():
            super().step(closure)


class _Answer:
    """Asks `accept` once a step, and remembers what it said."""

    def __init__(self, accept: Accept | None) -> None:
        self._accept = accept
        self.value: bool | None = None if accept else True

    def __call__(self, norm: float) -> bool:
        if self.value is None:
            assert self._accept is not None
            self.value = self._accept(norm)
        return self.value


class ShardedEngine:
    """DeepSpeed over the ranks of the default process group."""

    def __init__(
        self, model: HybridModel, config: OptimizerConfig, engine: DeepSpeedConfig, ranks: Ranks
    ) -> None:
        self.model = model.to(ranks.device)
        self.config = engine
        self.ranks = ranks
        self.guard = FiniteGuard()
        self._replica: HybridModel | None = None
        self._names = [name for name, _ in model.named_parameters()]
        self._bad = torch.zeros(len(self._names), dtype=torch.bool)
        self._shapes = {name: p.shape for name, p in model.named_parameters()}
        prepare(model, engine)
        self._deepspeed = _import_deepspeed()
        self._engine = self._initialise(config)
        self._create_flat_states()

    def _initialise(self, config: OptimizerConfig) -> Any:
        wrapped = _Step(self.model)
        optimizer = adamw(self.model, config)
        kind = _ClippedAdamW if self.config.zero_stage == 0 else _AskingAdamW
        optimizer = kind(optimizer.param_groups, lr=0.0, fused=True)
        engine, *_ = self._deepspeed.initialize(
            model=wrapped, optimizer=optimizer, config=_settings(self.config)
        )
        if self.config.zero_stage == 3:
            # token_logprobs reads this weight outside of its own module's forward pass.
            self._deepspeed.zero.register_external_parameter(wrapped, self.model.head.weight)
        return engine

    @property
    def skipped_steps(self) -> int:
        """See `Engine`."""
        return self.guard.skipped

    def forward(self, compute: Compute[Result]) -> Result:
        """See `Engine`."""
        return self._engine(compute)  # type: ignore[no-any-return]

    def backward(self, loss: Tensor) -> None:
        """See `Engine`."""
        watched = list(self.model.parameters()) if self.guard.last_chance else []
        hooks = [
            p.register_hook(self._note_of(index))  # type: ignore[no-untyped-call]
            for index, p in enumerate(watched)
        ]
        # DeepSpeed averages over ranks; the losses are shares of one sum.
        self._engine.backward(loss * self.ranks.count)
        for hook in hooks:
            hook.remove()

    def _note_of(self, index: int) -> Callable[[Tensor], None]:
        """A hook that remembers whether a gradient of this rank was not finite."""

        def note(gradient: Tensor) -> None:
            self._bad[index] |= not bool(torch.isfinite(gradient).all())

        return note

    def step(self, learning_rate: float, grad_clip: float, accept: Accept | None = None) -> float:
        """See `Engine`."""
        answer = _Answer(accept)
        optimizer = self._engine.optimizer
        norm: float
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        if self.config.zero_stage == 0:
            optimizer.clip = grad_clip
            optimizer.wanted = lambda norm: answer(norm) and math.isfinite(norm)
            self._engine.step()
            norm = optimizer.norm
        else:
            optimizer.clip_grad = grad_clip
            optimizer.optimizer.wanted = lambda: answer(float(optimizer._global_grad_norm))
            self._engine.step()
            norm = math.inf if optimizer.overflow else float(optimizer._global_grad_norm)
        # DeepSpeed does not call the optimizer when a gradient overflowed.
        if not answer(norm):
            return norm if math.isfinite(norm) else 0.0
        if math.isfinite(norm):
            self.guard.good()
            return norm
        self.guard.bad(self._culprit())
        self._bad.zero_()
        return 0.0

    def _culprit(self) -> str | None:
        """The first parameter whose gradient was not finite on any rank."""
        bad = self.ranks.any(self._bad)
        return next((name for name, flag in zip(self._names, bad, strict=True) if flag), None)

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Engine`."""
        get = self._deepspeed.utils.safe_get_full_fp32_param
        for name, parameter in self.model.named_parameters():
            value = parameter if self.config.zero_stage == 0 else get(parameter)
            yield name, value.detach().cpu().view(self._shapes[name])

    def optimizer_state(self) -> Iterator[tuple[str, Tensor]]:
        """See `Engine`."""
        states = self._flat_states()
        steps = next(iter(states.values()))["step"].detach().cpu()
        get = self._deepspeed.utils.safe_get_full_optimizer_state
        for name, parameter in self.model.named_parameters():
            for key in MOMENTS:
                whole = self.config.zero_stage == 0
                value = states[parameter][key] if whole else get(parameter, key)
                yield f"{name}/{key}", value.detach().cpu().view(self._shapes[name]).contiguous()
            yield f"{name}/step", steps.clone()

    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        """See `Engine`."""
        found = {}
        for name, parameter in self.model.named_parameters():
            moments = moments_of(tensors, name, parameter, self._shapes[name])
            if moments is not None:
                found[name] = moments
        states = self._flat_states()
        if found:
            steps = next(iter(found.values()))["step"]
            for state in states.values():
                state["step"].copy_(steps)
        for name, parameter in self.model.named_parameters():
            for key, value in found.get(name, {}).items():
                if key == "step":
                    continue
                if self.config.zero_stage == 0:
                    states[parameter][key].copy_(value)
                else:
                    self._deepspeed.utils.safe_set_full_optimizer_state(parameter, value, key)

    def snapshot(self) -> Snapshot:
        """See `Engine`."""
        return take_snapshot(self._live_tensors())

    def restore(self, snapshot: Snapshot) -> None:
        """See `Engine`."""
        if self.config.zero_stage == 3:
            # Whole weights that are still around from a forward pass would outlive the change.
            self._engine.empty_partition_cache()
        restore_snapshot(self._live_tensors(), snapshot)
        if self.config.zero_stage == 3 and (whole := self._engine.optimizer.persistent_parameters):
            # Small parameters stay whole on every rank, beside their shards.
            whole[0].all_gather(whole)

    def _live_tensors(self) -> Iterator[tuple[str, Tensor]]:
        """Weights, this rank's fp32 shards of them, and its optimizer state."""
        for name, parameter in self.model.named_parameters():
            shard = getattr(parameter, "ds_tensor", None)
            yield name, parameter if shard is None else shard
        flat = {f"flat/{index}": value for index, value in enumerate(self._flat_parameters())}
        if self.config.zero_stage:
            yield from flat.items()
        states = self._flat_states()
        yield from state_tensors((name, states.get(value, {})) for name, value in flat.items())

    def _base_optimizer(self) -> torch.optim.Optimizer:
        """The AdamW that really steps, on whole parameters or on this rank's flat shards."""
        optimizer = self._engine.optimizer
        return optimizer if self.config.zero_stage == 0 else optimizer.optimizer  # type: ignore[no-any-return]

    def _flat_states(self) -> dict[Any, dict[str, Tensor]]:
        return self._base_optimizer().state

    def _flat_parameters(self) -> list[Tensor]:
        optimizer = self._engine.optimizer
        if self.config.zero_stage == 0:
            return list(self.model.parameters())
        if self.config.zero_stage == 3:
            return list(optimizer.fp32_partitioned_groups_flat)
        return list(optimizer.single_partition_of_fp32_groups)

    def _create_flat_states(self) -> None:
        """Make the moments that AdamW would make at its first step.

        DeepSpeed 0.19.8 ties them to parameters after the first group's first step, when those of
        a second group do not exist yet, and never again.
        """
        states, optimizer = self._flat_states(), self._engine.optimizer
        for number, flat in enumerate(self._flat_parameters()):
            states[flat] = {
                "step": torch.zeros((), dtype=torch.float32, device=flat.device),
                **{key: torch.zeros_like(flat, requires_grad=False) for key in MOMENTS},
            }
            if self.config.zero_stage in (1, 2):
                self._deepspeed.utils.lazy_init_hp_params_optimizer_state(
                    optimizer.bit16_groups[number], flat, states
                )

    def sampling_model(self) -> HybridModel:
        """See `Engine`."""
        self._replica = replica(self, self._replica)
        return self._replica


def _import_deepspeed() -> Any:
    """Import DeepSpeed with run-time compilation of its kernels switched off."""
    os.environ.setdefault("DS_ACCELERATOR", "cuda" if torch.cuda.is_available() else "cpu")
    import deepspeed
    import deepspeed.ops
    import deepspeed.utils

    # Else init_distributed compiles C++; a process killed meanwhile leaves a lock behind on which
    # every later one waits for ever.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    compile_ = torch.compile
    # DeepSpeed decorates its Muon with torch.compile, which loads all of Inductor: seconds in every
    # rank for an optimizer that is not ours.
    torch.compile = lambda function, *_, **__: function  # type: ignore[assignment]
    try:
        importlib.import_module("deepspeed.runtime.zero.muon.original_muon")
    finally:
        torch.compile = compile_
    return deepspeed


def _settings(config: DeepSpeedConfig) -> dict[str, Any]:
    zero: dict[str, Any] = {"stage": config.zero_stage}
    if config.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu"}
    if config.persistent_elements is not None:
        zero["stage3_param_persistence_threshold"] = config.persistent_elements
    return {
        # Microbatches are ours: every step says itself where it ends.
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "managed_gradient_accumulation": False,
        "zero_optimization": zero,
        # The default is 1. Each step says what it clips at (ZeRO 1 to 3), or clips by itself.
        "gradient_clipping": 0.0,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": None,
    }
