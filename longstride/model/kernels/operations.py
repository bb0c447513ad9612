"""The kernels as functions on tensors; call them only where `usable` says so.

Legend: R rows, X width, M routed tokens, F expert width, H heads, D head width.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longstride.model.kernels.library import library


def usable(*tensors: Tensor) -> bool:
    """Return whether the kernels can take these tensors: fp32 on a CPU, outside of tracing."""
    for tensor in tensors:
        if tensor.dtype is not torch.float32 or not tensor.is_cpu:
            return False
    return not torch.compiler.is_compiling() and library() is not None


def _kernels() -> Any:
    """Return the loaded library; attributes of it are C functions that take addresses."""
    return library()


def _parts() -> int:
    """Partial sums of a weight gradient: one a thread, so that none is written by two."""
    return torch.get_num_threads()


def rms_norm(x: Tensor, weight_X: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return x / rms(x) * weight and 1 / rms(x) [...] over the last dimension."""
    x = x.contiguous()
    width = x.shape[-1]
    y, scale = torch.empty_like(x), x.new_empty(x.shape[:-1])
    _kernels().rms_norm(
        x.data_ptr(), weight_X.data_ptr(), eps, scale.numel(), width, y.data_ptr(), scale.data_ptr()
    )
    return y, scale


def rms_norm_backward(
    grad: Tensor, x: Tensor, weight_X: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the gradients of x and weight."""
    grad, x = grad.contiguous(), x.contiguous()
    width, parts = x.shape[-1], _parts()
    dx, dweight = torch.empty_like(x), x.new_zeros(parts, width)
    _kernels().rms_norm_backward(
        grad.data_ptr(),
        x.data_ptr(),
        weight_X.data_ptr(),
        scale.data_ptr(),
        scale.numel(),
        width,
        parts,
        dx.data_ptr(),
        dweight.data_ptr(),
    )
    return dx, dweight.sum(0)


def _stride(gate: Tensor) -> int:
    """Return the distance of rows of [..., X], which must be evenly spaced and dense inside."""
    rows = gate.flatten(0, -2)
    assert rows.stride(-1) == 1 and rows.data_ptr() == gate.data_ptr()
    return rows.stride(0)


def gated_norm(o: Tensor, weight_X: Tensor, gate: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """Return rms_norm(o) x sigmoid(gate) and 1 / rms(o); `gate` may be a slice of a wider row."""
    o = o.contiguous()
    width = o.shape[-1]
    y, scale = torch.empty_like(o), o.new_empty(o.shape[:-1])
    _kernels().gated_norm(
        o.data_ptr(),
        weight_X.data_ptr(),
        gate.data_ptr(),
        _stride(gate),
        eps,
        scale.numel(),
        width,
        y.data_ptr(),
        scale.data_ptr(),
    )
    return y, scale


def gated_norm_backward(
    grad: Tensor, o: Tensor, weight_X: Tensor, gate: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of o, weight and gate."""
    grad, o = grad.contiguous(), o.contiguous()
    width, parts = o.shape[-1], _parts()
    d_o, dgate, dweight = torch.empty_like(o), torch.empty_like(o), o.new_zeros(parts, width)
    _kernels().gated_norm_backward(
        grad.data_ptr(),
        o.data_ptr(),
        weight_X.data_ptr(),
        gate.data_ptr(),
        _stride(gate),
        scale.data_ptr(),
        scale.numel(),
        width,
        parts,
        d_o.data_ptr(),
        dgate.data_ptr(),
        dweight.data_ptr(),
    )
    return d_o, dweight.sum(0), dgate


def swiglu(pre_M2F: Tensor) -> Tensor:
    """Return SiLU(gate) x up of [M, gate|up]."""
    pre = pre_M2F.contiguous()
    act = pre.new_empty(pre.shape[0], pre.shape[1] // 2)
    _kernels().swiglu(pre.data_ptr(), act.shape[0], act.shape[1], act.data_ptr())
    return act


def swiglu_backward(pre_M2F: Tensor, dact_MF: Tensor) -> Tensor:
    """Return the gradient of [M, gate|up]."""
    dpre = torch.empty_like(pre_M2F)
    _kernels().swiglu_backward(
        pre_M2F.data_ptr(), dact_MF.data_ptr(), dact_MF.shape[0], dact_MF.shape[1], dpre.data_ptr()
    )
    return dpre


def silu_heads(x_BTE: Tensor, heads: int, padded: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return SiLU of q, k, v, each [B, H, padded, D], of [B, T, H x (q|k|v) x D].

    `x_BTE` may be a slice of wider rows or of longer sequences.
    """
    batch, tokens, width = x_BTE.shape
    dim = width // (3 * heads)
    out = x_BTE.new_empty(3, batch, heads, padded, dim)
    q, k, v = out.unbind(0)
    _kernels().silu_heads(
        x_BTE.data_ptr(),
        *_steps(x_BTE),
        batch,
        tokens,
        padded,
        heads,
        dim,
        q.data_ptr(),
        k.data_ptr(),
        v.data_ptr(),
    )
    return q, k, v


def silu_heads_backward(
    x_BTE: Tensor, dq: Tensor, dk: Tensor, dv: Tensor, heads: int, out_BTE: Tensor
) -> None:
    """Write the gradient of the input from those of q, k, v [B, H, padded, D] into `out_BTE`."""
    batch, tokens, _ = x_BTE.shape
    padded, dim = dq.shape[-2], dq.shape[-1]
    _kernels().silu_heads_backward(
        x_BTE.data_ptr(),
        *_steps(x_BTE),
        dq.data_ptr(),
        dk.data_ptr(),
        dv.data_ptr(),
        batch,
        tokens,
        padded,
        heads,
        dim,
        out_BTE.data_ptr(),
        *_steps(out_BTE),
    )


def _steps(x_BTE: Tensor) -> tuple[int, int]:
    """Return the distances of tokens and of rows of [B, T, E], which is dense inside a token."""
    assert x_BTE.stride(2) == 1
    return x_BTE.stride(1), x_BTE.stride(0)


def lightning_step(
    qkvg_RE: Tensor, decay_H: Tensor, weight_W: Tensor, eps: float, state_RHDD: Tensor
) -> Tensor:
    """Advance the states in place by one token; return the gated, normed output [R, W]."""
    rows, heads, dim, _ = state_RHDD.shape
    qkvg_RE = qkvg_RE.contiguous()
    y = qkvg_RE.new_empty(rows, heads * dim)
    _kernels().lightning_step(
        qkvg_RE.data_ptr(),
        decay_H.data_ptr(),
        weight_W.data_ptr(),
        eps,
        rows,
        heads,
        dim,
        state_RHDD.data_ptr(),
        y.data_ptr(),
    )
    return y


def add_norm(
    update_RX: Tensor, base_RX: Tensor, alpha: float, weight_X: Tensor, eps: float
) -> tuple[Tensor, Tensor]:
    """Return update + alpha x base, written over `update`, and its norm."""
    y = torch.empty_like(update_RX)
    rows, width = update_RX.shape
    _kernels().add_norm(
        update_RX.data_ptr(),
        base_RX.data_ptr(),
        alpha,
        weight_X.data_ptr(),
        eps,
        rows,
        width,
        update_RX.data_ptr(),
        y.data_ptr(),
    )
    return update_RX, y


def route(logits_NE: Tensor, top_k: int) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Return weights and experts [N, K], slots [N, K], source tokens [M], and run ends [E]."""
    tokens, experts = logits_NE.shape
    weights = logits_NE.new_empty(tokens, top_k)
    chosen = torch.empty(tokens, top_k, dtype=torch.int64)
    slots, source = torch.empty_like(chosen), chosen.new_empty(tokens * top_k)
    ends = torch.empty(experts, dtype=torch.int32)
    _kernels().route(
        logits_NE.data_ptr(),
        tokens,
        experts,
        top_k,
        weights.data_ptr(),
        chosen.data_ptr(),
        slots.data_ptr(),
        source.data_ptr(),
        ends.data_ptr(),
    )
    return weights, chosen, slots, source, ends


def combine(
    y_MX: Tensor, weights_NK: Tensor, slots_NK: Tensor, base_NX: Tensor | None, alpha: float
) -> Tensor:
    """Return each token's weighted sum of its experts' outputs, plus alpha x base."""
    tokens, top_k = weights_NK.shape
    out = y_MX.new_empty(tokens, y_MX.shape[1])
    base = None if base_NX is None else base_NX.contiguous()
    _kernels().combine(
        y_MX.data_ptr(),
        weights_NK.data_ptr(),
        slots_NK.data_ptr(),
        base.data_ptr() if base is not None else None,
        alpha,
        tokens,
        top_k,
        y_MX.shape[1],
        out.data_ptr(),
    )
    return out
