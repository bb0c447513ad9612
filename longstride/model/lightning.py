"""Lightning attention: linear attention with a per-head decay.

MiniMax-01 (arXiv 2501.08313), Lightning Attention-2 (arXiv 2401.04658):

    S_t = lambda S_{t-1} + k_t v_t^T,    o_t = q_t S_t,    lambda = exp(-s)

`chunked` computes it for whole rows; here are the decay, the layer, and the single-token step.

Legend: B rows, T tokens, n chunks of C tokens, H heads, D head width.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longstride.model.chunked import chunked_attention, final_state
from longstride.model.fla import fla_attention, usable
from longstride.model.kernels import operations
from longstride.model.layout import ChunkLayout
from longstride.model.norms import (
    Float32Module,
    RMSNorm,
    projection,
    without_autocast,
)
from schemas.model import ModelConfig


def decay_slopes(num_heads: int, layer: int, num_layers: int) -> Tensor:
    """Return the slopes s_h of a layer, [H] fp32; a head forgets by exp(-s_h) a token.

    Powers of two use 2^(-8(h+1)/H); other head counts interleave as in ALiBi (arXiv 2108.12409).
    Early layers are local and the last ones barely decay: the factor falls from 1 to 1e-5.
    """
    depth = layer / (num_layers - 1) if num_layers > 1 else 0.0
    factor = 1.0 - depth + 1e-5
    return torch.tensor([s * factor for s in _alibi_slopes(num_heads)], dtype=torch.float32)


def _alibi_slopes(num_heads: int) -> list[float]:
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8.0 * (h + 1) / power) for h in range(power)]
    if power < num_heads:
        slopes += _alibi_slopes(2 * power)[0::2][: num_heads - power]
    return slopes


class _GatedNorm(torch.autograd.Function):
    """rms_norm(o) x sigmoid(gate) in one node."""

    @staticmethod
    def forward(ctx: Any, o: Tensor, weight: Tensor, gate: Tensor, eps: float) -> Tensor:
        y, scale = operations.gated_norm(o, weight, gate, eps)
        ctx.save_for_backward(o, weight, gate, scale)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, Tensor, Tensor, None]:
        o, weight, gate, scale = ctx.saved_tensors
        return *operations.gated_norm_backward(grads[0], o, weight, gate, scale), None


def lightning_attention(
    qkv_BTE: Tensor, slopes_H: Tensor, heads: int, layout: ChunkLayout
) -> Tensor:
    """Return o [B, T, H x D] for the projection [B, T, H x (q|k|v) x D] *before* its SiLU.

    Gradients flow to `qkv_BTE` only: the decay is a constant of the architecture.
    """
    with without_autocast(qkv_BTE):
        if usable(qkv_BTE):
            return fla_attention(qkv_BTE, slopes_H, heads, layout)
        return chunked_attention(qkv_BTE, slopes_H, heads, layout)


class LightningAttention(Float32Module):
    """One lightning layer: fused projection, attention, norm over all heads, gate, output.

    `self.slopes_H` is a buffer that stays fp32; the projections are cast with the model, which is
    why they are submodules.
    """

    slopes_H: Tensor

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__()
        self.heads, self.dim = config.num_heads, config.head_dim
        self.width = self.heads * self.dim
        self.qkvg_proj = projection(config.hidden_size, 4 * self.width)
        self.out_proj = projection(self.width, config.hidden_size)
        self.norm = RMSNorm(self.width, config.lightning_norm_eps)
        slopes = decay_slopes(self.heads, layer, config.num_layers)
        self.register_buffer("slopes_H", slopes, persistent=False)

    def forward(self, x_BTE: Tensor, layout: ChunkLayout) -> Tensor:
        """Return the layer's output, [B, T, hidden]."""
        qkv, gate = self.qkvg_proj(x_BTE).split((3 * self.width, self.width), dim=-1)
        return self._finish(lightning_attention(qkv, self.slopes_H, self.heads, layout), gate)

    def prefill(
        self, x_BTE: Tensor, layout: ChunkLayout, lengths_B: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the output and the fp32 state [B, H, D, D] after each row's last real token."""
        qkv, gate = self.qkvg_proj(x_BTE).split((3 * self.width, self.width), dim=-1)
        o = lightning_attention(qkv, self.slopes_H, self.heads, layout)
        state = final_state(qkv, self.slopes_H, self.heads, layout, lengths_B)
        return self._finish(o, gate), state

    def step(self, x_RE: Tensor, state_RHDD: Tensor) -> Tensor:
        """Advance the fp32 states of R rows in place by one token; return [R, hidden]."""
        rows = x_RE.shape[0]
        qkvg = self.qkvg_proj(x_RE)
        weight = self.norm.weight
        if operations.usable(qkvg, state_RHDD, weight) and state_RHDD.is_contiguous():
            decay_H = torch.exp(-self.slopes_H)
            mixed = operations.lightning_step(qkvg, decay_H, weight, self.norm.eps, state_RHDD)
            return self.out_proj(mixed)  # type: ignore[no-any-return]
        qkv, gate = qkvg.split((3 * self.width, self.width), dim=-1)
        active = nn.functional.silu(qkv.float()).view(rows, self.heads, 3, 1, self.dim)
        q, k, v = active.unbind(2)
        state_RHDD.mul_(torch.exp(-self.slopes_H)[:, None, None])
        state_RHDD.addcmul_(k.transpose(-1, -2), v)
        o = (q @ state_RHDD).reshape(rows, self.width)
        return self._finish(o.to(x_RE.dtype), gate)

    def _finish(self, o: Tensor, gate: Tensor) -> Tensor:
        if operations.usable(o, gate, self.norm.weight):
            gated = _GatedNorm.apply(o, self.norm.weight, gate, self.norm.eps)  # type: ignore[no-untyped-call]
            return self.out_proj(gated)  # type: ignore[no-any-return]
        return self.out_proj(self.norm(o) * torch.sigmoid(gate))  # type: ignore[no-any-return]
