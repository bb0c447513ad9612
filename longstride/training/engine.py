"""The engine: runs the model, adds up gradients, clips them and takes optimizer steps.

Stages and rounds see the interface `Engine` only. `TorchEngine` trains in this process;
`longstride.training.sharded` trains with DeepSpeed. Both step with `torch.optim.AdamW` on fp32
weights, without weight decay on vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Protocol, TypeVar

import torch
from torch import Tensor, nn

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.training.arithmetic import checkpoint_activations, compute_in
from longstride.training.ranks import Ranks
from longstride.training.snapshots import Snapshot, restore_snapshot, state_tensors, take_snapshot
from schemas.engine import EngineConfig
from schemas.engine import TorchEngine as TorchConfig
from schemas.stages import OptimizerConfig

MAXIMUM_BAD_STEPS = 3
MOMENTS = ("exp_avg", "exp_avg_sq")

Accept = Callable[[float], bool]
Result = TypeVar("Result")
Compute = Callable[[HybridModel], Result]


class Engine(Protocol):
    """What a training loop needs. With several ranks every method but `backward` is collective."""

    model: HybridModel
    """The module that trains; where its weights are sharded, only `forward` may run it."""
    ranks: Ranks
    """The processes that share a step."""
    guard: FiniteGuard
    """Counts the steps that were skipped."""

    @property
    def config(self) -> EngineConfig:
        """How it runs."""

    @property
    def skipped_steps(self) -> int:
        """Steps skipped so far because a gradient was not finite."""

    def forward(self, compute: Compute[Result]) -> Result:
        """Run `compute` on the model; the only way to run it that works sharded."""

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss; the losses of all ranks add up."""

    def step(self, learning_rate: float, grad_clip: float, accept: Accept | None = None) -> float:
        """Clip, update and clear gradients; return the global norm before clipping.

        A step whose gradient is not finite changes nothing, is counted, and returns 0.

        Args:
            learning_rate: of this step.
            grad_clip: largest global norm.
            accept: asked once, with the norm (infinite or NaN included), after the gradients are
                known and before anything changes. When it says no, gradients are cleared, nothing
                changes and nothing is counted: the caller watches. Every rank gets the same norm
                and must give the same answer.

        Raises:
            CheckpointError: Gradients were not finite too often in a row; names the parameter.
        """

    def snapshot(self) -> Snapshot:
        """Copies of weights and optimizer state as they lie in this process; not collective."""

    def restore(self, snapshot: Snapshot) -> None:
        """Go back to a snapshot of this very engine. Collective."""

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Names and whole fp32 weights, one at a time, on the CPU."""

    def optimizer_state(self) -> Iterator[tuple[str, Tensor]]:
        """`<parameter>/exp_avg`, `/exp_avg_sq` and `/step`, whole, one at a time, on the CPU."""

    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `optimizer_state` gave, from any engine and any number of ranks.

        Raises:
            CheckpointError: A tensor is missing or has another shape.
        """

    def sampling_model(self) -> HybridModel:
        """A whole model with the present weights to sample from, of the type that trains.

        It is the model itself, or a copy that the next call brings up to date.
        """


class FiniteGuard:
    """Counts steps whose gradient is not finite; `MAXIMUM_BAD_STEPS` in a row stop the run."""

    def __init__(self) -> None:
        self.skipped = 0
        self.in_a_row = 0

    @property
    def last_chance(self) -> bool:
        """True when one more bad step will stop the run."""
        return self.in_a_row + 1 >= MAXIMUM_BAD_STEPS

    def good(self) -> None:
        """Record a step that was taken."""
        self.in_a_row = 0

    def bad(self, culprit: str | None) -> None:
        """Record a step that was skipped.

        Args:
            culprit: first parameter whose gradient was not finite; None when only their norm
                overflowed, or when nobody looked.

        Raises:
            CheckpointError: It was one too many.
        """
        self.skipped += 1
        self.in_a_row += 1
        if self.in_a_row >= MAXIMUM_BAD_STEPS:
            what = f"of {culprit!r} was not finite" if culprit else "norm overflowed"
            raise CheckpointError(
                f"the gradient {what} in {self.in_a_row} steps in a row; lower the learning "
                "rate, or check the data of this stage"
            )


def adamw(model: nn.Module, config: OptimizerConfig) -> torch.optim.AdamW:
    """The optimizer of every engine: no weight decay on vectors; its rate is set at each step."""
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    vectors = [p for p in model.parameters() if p.ndim < 2]
    return torch.optim.AdamW(
        [
            {"params": matrices, "weight_decay": config.weight_decay},
            {"params": vectors, "weight_decay": 0.0},
        ],
        lr=0.0,
        betas=(config.beta1, config.beta2),
        eps=config.eps,
        fused=True,
    )


def prepare(model: HybridModel, config: EngineConfig) -> None:
    """Set arithmetic and checkpointing of a fp32 model as the engine's configuration says."""
    if config.dtype == "bfloat16":
        compute_in(model, torch.bfloat16)
    if config.activation_checkpointing:
        checkpoint_activations(model)


def moments_of(
    tensors: dict[str, Tensor], name: str, parameter: Tensor, shape: torch.Size
) -> dict[str, Tensor] | None:
    """The optimizer state of one parameter, checked; None when there is none at all.

    Raises:
        CheckpointError: A tensor is missing or has another shape.
    """
    keys = (*MOMENTS, "step")
    found = {key: tensors[f"{name}/{key}"] for key in keys if f"{name}/{key}" in tensors}
    if not found:
        return None
    for key in keys:
        want = torch.Size() if key == "step" else shape
        if key not in found:
            raise CheckpointError(f"the optimizer state lacks {name}/{key}; rerun the last stage")
        if found[key].shape != want:
            raise CheckpointError(
                f"optimizer state {name}/{key} is {list(found[key].shape)} but its parameter asks "
                f"for {list(want)}; the checkpoint belongs to another model"
            )
    return {key: value.to(device=parameter.device) for key, value in found.items()}


class TorchEngine:
    """Plain torch in one process."""

    def __init__(
        self, model: HybridModel, config: OptimizerConfig, engine: TorchConfig | None = None
    ) -> None:
        self.model = model
        self.config = engine or TorchConfig()
        self.ranks = Ranks()
        self.guard = FiniteGuard()
        self._replica: HybridModel | None = None
        prepare(model, self.config)
        self._optimizer = adamw(model, config)
        self._optimizer.zero_grad(set_to_none=True)

    @property
    def skipped_steps(self) -> int:
        """See `Engine`."""
        return self.guard.skipped

    def forward(self, compute: Compute[Result]) -> Result:
        """See `Engine`."""
        return compute(self.model)

    def backward(self, loss: Tensor) -> None:
        """See `Engine`."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float, grad_clip: float, accept: Accept | None = None) -> float:
        """See `Engine`."""
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        total = nn.utils.get_total_norm(gradients)
        norm = float(total)
        if accept is not None and not accept(norm):
            pass
        elif math.isfinite(norm):
            self.guard.good()
            nn.utils.clip_grads_with_norm_(self.model.parameters(), grad_clip, total)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        else:
            self.guard.bad(self._culprit())
        self._optimizer.zero_grad(set_to_none=True)
        return norm if math.isfinite(norm) else 0.0

    def _culprit(self) -> str | None:
        for name, parameter in self.model.named_parameters():
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
                return name
        return None

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """See `Engine`."""
        for name, parameter in self.model.named_parameters():
            yield name, parameter.detach().cpu()

    def optimizer_state(self) -> Iterator[tuple[str, Tensor]]:
        """See `Engine`."""
        for name, parameter in self.model.named_parameters():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                yield f"{name}/{key}", torch.as_tensor(value).detach().cpu().contiguous()

    def load_optimizer_state(self, tensors: dict[str, Tensor]) -> None:
        """See `Engine`."""
        for name, parameter in self.model.named_parameters():
            found = moments_of(tensors, name, parameter, parameter.shape)
            if found is not None:
                self._optimizer.state[parameter] = found

    def snapshot(self) -> Snapshot:
        """See `Engine`."""
        return take_snapshot(self._live_tensors())

    def restore(self, snapshot: Snapshot) -> None:
        """See `Engine`."""
        restore_snapshot(self._live_tensors(), snapshot)

    def _live_tensors(self) -> Iterator[tuple[str, Tensor]]:
        named = list(self.model.named_parameters())
        yield from named
        yield from state_tensors((n, self._optimizer.state.get(p, {})) for n, p in named)

    def sampling_model(self) -> HybridModel:
        """See `Engine`."""
        if self.config.dtype == "float32":
            return self.model
        self._replica = replica(self, self._replica)
        return self._replica


def replica(engine: Engine, target: HybridModel | None) -> HybridModel:
    """Copy an engine's weights into a plain model of the type that trains; make one if needed."""
    if target is None:
        target = HybridModel(engine.model.config).to(engine.ranks.device)
        if engine.config.dtype == "bfloat16":
            target = target.to(torch.bfloat16)
    places = dict(target.named_parameters())
    with torch.no_grad():
        for name, value in engine.weights():
            places[name].copy_(value)
    return target
