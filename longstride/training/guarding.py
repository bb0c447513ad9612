"""Guards of RL updates: what is not finite is named and saved, and never reaches the weights."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from longstride.errors import CheckpointError
from longstride.store.files import write_json
from longstride.training.engine import Engine
from longstride.training.sequences import SequenceLogprobs
from schemas.rows import Rollout


class UpdateGuard:
    """Counts updates that were left out; too many in a row stop the run.

    Weights and moments are those of the last good update all along, so the newest in-progress
    checkpoint is always a good one.
    """

    def __init__(self, limit: int, directory: Path | None) -> None:
        """Allow fewer than `limit` bad updates in a row; write their batches to `directory`."""
        self.limit = limit
        self.skipped = 0
        self.in_a_row = 0
        self._directory = directory

    def good(self) -> None:
        """Record an update that was applied."""
        self.in_a_row = 0

    def bad(self, step: int, tensor: str, minibatch: Sequence[Rollout]) -> None:
        """Record an update that was left out, and save its minibatch.

        Raises:
            CheckpointError: It was the last one allowed.
        """
        self.skipped += 1
        self.in_a_row += 1
        saved = self.save(step, tensor, minibatch)
        if self._directory is not None:
            print(f"update {step} left out: {tensor} not finite{saved}")
        if self.in_a_row >= self.limit:
            raise CheckpointError(
                f"{tensor} not finite at update {step}, the last of {self.in_a_row} bad ones in a "
                f"row (rl.maximum_bad_updates={self.limit}){saved}; weights are those of the last "
                "good update: lower rl.learning_rate or rl.optimizer.grad_clip and resume"
            )

    def save(self, step: int, problem: str, rollouts: Sequence[Rollout]) -> str:
        """Write the rollouts in which something went wrong; return a clause that says where."""
        if self._directory is None:
            return ""
        path = self._directory / f"bad-update-{step:06d}.json"
        rows = [rollout.model_dump(mode="json") for rollout in rollouts]
        write_json(path, {"step": step, "problem": problem, "rollouts": rows})
        return f"; its {len(rollouts)} sequences are in {path}"

    def state(self) -> dict[str, int]:
        """JSON state for an in-progress checkpoint."""
        return {"skipped": self.skipped, "in_a_row": self.in_a_row}

    def load_state(self, state: dict[str, int]) -> None:
        """Go on where `state` was taken."""
        self.skipped, self.in_a_row = state["skipped"], state["in_a_row"]


@torch.no_grad()
def source_of_nonfinite(engine: Engine, forward: SequenceLogprobs) -> str:
    """What first was not finite in a forward pass that gave log-probabilities that are not.

    A weight, else the output of the first module, else the log-probabilities themselves. Sharded
    weights are not looked into.
    """
    if engine.ranks.count > 1:
        return "log-probabilities were"
    for name, parameter in engine.model.named_parameters():
        if not bool(torch.isfinite(parameter).all()):
            return f"weight {name!r} was"
    found: list[str] = []

    def watch(name: str) -> Any:
        def look(module: nn.Module, inputs: Any, output: Any) -> None:
            if not found and any(not bool(torch.isfinite(t).all()) for t in _floats(output)):
                found.append(name)

        return look

    handles = [
        module.register_forward_hook(watch(name))
        for name, module in engine.model.named_modules()
        if name
    ]
    try:
        engine.forward(forward)
    finally:
        for handle in handles:
            handle.remove()
    return f"output of {found[0]!r} was" if found else "logits or log-probabilities were"


def nonfinite_gradient(model: nn.Module) -> str:
    """The first weight whose gradient is not finite, or that the norm is not."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None and not bool(torch.isfinite(parameter.grad).all()):
            return f"gradient of {name!r} was"
    return "norm of the gradients was"


def _floats(output: Any) -> list[Tensor]:
    if isinstance(output, Tensor):
        return [output] if output.is_floating_point() else []
    if isinstance(output, list | tuple):
        return [tensor for part in output for tensor in _floats(part)]
    if hasattr(output, "__dataclass_fields__"):
        return [t for name in output.__dataclass_fields__ for t in _floats(getattr(output, name))]
    return []
