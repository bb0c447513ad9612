"""RMSNorm, and parameters that stay in fp32 when the rest of the model is cast down."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longstride.model.kernels import operations


def at_least_float32(dtype: torch.dtype) -> torch.dtype:
    """Return the type to accumulate in: fp64 stays fp64, everything else becomes fp32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def without_autocast(tensor: Tensor) -> torch.autocast:
    """Return a context in which autocast leaves fp32 operations on the tensor's device alone."""
    return torch.autocast(device_type=tensor.device.type, enabled=False)


class Float32Module(nn.Module):
    """A module whose own parameters and buffers (not its children's) ignore casts below fp32.

    `model.to(torch.bfloat16)`, `.half()` and the like move such tensors to the device asked for
    but keep their type, so that decay, router and head cannot lose precision by accident.
    """

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        def keep(tensor: Tensor) -> Tensor:
            out = fn(tensor)
            if out.dtype in (torch.bfloat16, torch.float16):
                return tensor.to(device=out.device)
            return out

        if recurse:
            for child in self.children():
                child._apply(fn)  # type: ignore[no-untyped-call]
        return super()._apply(keep, recurse=False)  # type: ignore[no-untyped-call, no-any-return]


def projection(inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """Return a linear map whose weights are not drawn: `initialise` does that.

    torch's own initialisation would consume the global random generator.
    """
    # Under `torch.device("meta")` even the 456B model can be laid out without any memory.
    device = torch.get_default_device()
    return nn.utils.skip_init(nn.Linear, inputs, outputs, bias=bias, device=device)  # type: ignore[no-any-return, no-untyped-call]


class _RMSNorm(torch.autograd.Function):
    """y = x / sqrt(mean(x^2) + eps) * weight, in fp32, with a hand-written backward.

    The composite costs three times the operations, and `F.rms_norm` is slower still on CPUs.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y, scale = normalise(x, weight, eps)
        ctx.save_for_backward(x, scale, weight)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, None]:
        x, scale, weight = ctx.saved_tensors
        return *normalise_backward(grads[0], x, weight, scale), None


def normalise(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / rms * weight in the type of `x`, and 1 / rms [..., 1] in fp32 (fp64 for fp64)."""
    if operations.usable(x, weight):
        y, scale = operations.rms_norm(x, weight, eps)
        return y, scale[..., None]
    wide = x.to(at_least_float32(x.dtype))
    norm = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = norm.square_().div_(x.shape[-1]).add_(eps).rsqrt_()
    return (wide * scale).to(x.dtype) * weight, scale


def normalise_backward(
    grad: Tensor, x: Tensor, weight: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of `x` and `weight`, each in its own type."""
    if operations.usable(grad, x, weight):
        return operations.rms_norm_backward(grad, x, weight, scale)
    width = x.shape[-1]
    normed = x.to(scale.dtype) * scale
    wide = grad.to(scale.dtype)
    product = wide * normed
    grad_weight = product.reshape(-1, width).sum(0)
    inner = (product @ weight.to(scale.dtype)[:, None]).div_(-width)
    grad_x = (wide * weight).addcmul_(normed, inner).mul_(scale)
    return grad_x.to(x.dtype), grad_weight.to(weight.dtype)


class RMSNorm(nn.Module):
    """Root-mean-square norm over the last dimension; accumulates in fp32."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normed tensor, of the shape and type of `x`."""
        if torch.is_grad_enabled():
            return _RMSNorm.apply(x, self.weight, self.eps)  # type: ignore[no-untyped-call, no-any-return]
        return normalise(x, self.weight, self.eps)[0]
