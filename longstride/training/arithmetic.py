"""How blocks compute: in bf16 with fp32 weights, and without keeping their activations.

Both replace the `forward` of modules of one model object, so names and weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from longstride.model.hybrid import HybridModel
from longstride.model.norms import Float32Module


def compute_in(model: HybridModel, dtype: torch.dtype) -> None:
    """Make the body of a fp32 model compute in `dtype`.

    Each module casts its own weights when it runs, so that gradients arrive, and add up, in fp32.
    Head and router are left alone: they compute in fp32. The cast copies live until the backward
    pass unless activations are checkpointed.
    """
    for module in model.modules():
        if module._parameters and not isinstance(module, Float32Module):
            module.forward = _with_cast_weights(module, module.forward, dtype)


def _with_cast_weights(
    module: nn.Module, forward: Callable[..., Any], dtype: torch.dtype
) -> Callable[..., Any]:
    def cast_forward(*arguments: Any) -> Any:
        # An entry of __dict__ hides the parameter of the same name while the module runs.
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module.__dict__[name] = parameter.to(dtype)
        try:
            return forward(*arguments)
        finally:
            for name in module._parameters:
                module.__dict__.pop(name, None)

    return cast_forward


def checkpoint_activations(model: HybridModel) -> None:
    """Make every block keep its input only, and run again in the backward pass."""
    for block in model.blocks:
        block.forward = _recomputed(block.forward)


def _recomputed(forward: Callable[..., Any]) -> Callable[..., Any]:
    def recomputed_forward(*arguments: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments)
        # Nothing in a block draws random numbers, so there is no state to restore.
        return checkpoint(forward, *arguments, use_reentrant=False, preserve_rng_state=False)

    return recomputed_forward
