"""One training process: AdamW, gradient clipping, a guard against non-finite gradients."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from schemas.stages import OptimizerConfig

MAXIMUM_BAD_STEPS = 3


class Engine:
    """Accumulates gradients and takes optimizer steps.

    A step whose gradient is not finite is skipped, so the weights stay finite; after
    `MAXIMUM_BAD_STEPS` in a row it raises.
    """

    def __init__(self, model: HybridModel, config: OptimizerConfig) -> None:
        self.model = model
        self._bad_steps = 0
        self.skipped_steps = 0
        matrices = [p for p in model.parameters() if p.ndim >= 2]
        others = [p for p in model.parameters() if p.ndim < 2]
        self._optimizer = torch.optim.AdamW(
            [
                {"params": matrices, "weight_decay": config.weight_decay},
                {"params": others, "weight_decay": 0.0},
            ],
            lr=0.0,
            betas=(config.beta1, config.beta2),
            eps=config.eps,
            fused=True,
        )
        self._optimizer.zero_grad(set_to_none=True)

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a microbatch."""
        loss.backward()  # type: ignore[no-untyped-call]

    def step(self, learning_rate: float, grad_clip: float) -> float:
        """Clip, update and clear gradients; return the gradient norm before clipping.

        Raises:
            CheckpointError: Gradients were not finite too often in a row; names the parameter.
        """
        gradients = [p.grad for p in self.model.parameters() if p.grad is not None]
        total = nn.utils.get_total_norm(gradients)
        norm = float(total)
        if math.isfinite(norm):
            self._bad_steps = 0
            nn.utils.clip_grads_with_norm_(self.model.parameters(), grad_clip, total)
            for group in self._optimizer.param_groups:
                group["lr"] = learning_rate
            self._optimizer.step()
        else:
            self._skip()
        self._optimizer.zero_grad(set_to_none=True)
        return norm if math.isfinite(norm) else 0.0

    def _skip(self) -> None:
        self._bad_steps += 1
        self.skipped_steps += 1
        if self._bad_steps < MAXIMUM_BAD_STEPS:
            return
        bad = [
            name
            for name, parameter in self.model.named_parameters()
            if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all())
        ]
        what = f"of {bad[0]!r} was not finite" if bad else "norm overflowed"
        raise CheckpointError(
            f"the gradient {what} in {self._bad_steps} steps in a row; lower the learning rate, or "
            "check the data of this stage"
        )

    def state(self) -> dict[str, Tensor]:
        """Optimizer state as named tensors, for a checkpoint."""
        tensors: dict[str, Tensor] = {}
        for name, parameter in self.model.named_parameters():
            for key, value in self._optimizer.state.get(parameter, {}).items():
                tensors[f"{name}/{key}"] = torch.as_tensor(value).detach().contiguous()
        return tensors

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        for name, parameter in self.model.named_parameters():
            keys = ("exp_avg", "exp_avg_sq", "step")
            found = {key: tensors[f"{name}/{key}"] for key in keys if f"{name}/{key}" in tensors}
            if found:
                self._optimizer.state[parameter] = found
