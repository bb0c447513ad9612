"""Lightning attention: linear attention with a per-head decay, computed chunk by chunk.

MiniMax-01 (arXiv 2501.08313), Lightning Attention-2 (arXiv 2401.04658):

    S_t = lambda S_{t-1} + k_t v_t^T,    o_t = q_t S_t,    lambda = exp(-s)

Inside a chunk the sum is a masked matrix product; between chunks only the state S travels. The
state starts from zero at every document of a packed row. Everything here accumulates in fp32.

Legend: B rows, T tokens, n chunks of C tokens, H heads, D head width.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longstride.model.kernels import operations
from longstride.model.layout import ChunkLayout
from longstride.model.norms import (
    Float32Module,
    RMSNorm,
    at_least_float32,
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


class _Decays(NamedTuple):
    """Powers of lambda that the chunked form needs; every one of them is at most 1."""

    read: Tensor
    """lambda^(i+1) (x reads mask), [B or 1, H, n or 1, C, 1]: weight of the incoming state."""
    write: Tensor
    """lambda^(C-1-j) (x writes mask), same shape: weight of a token in the outgoing state."""
    carry: Tensor
    """lambda^C (x carries mask), [B or 1, H, n or 1, 1, 1]."""
    inside_HCC: Tensor
    """lambda^(i-j) for i >= j, else 0."""


def _decays(slopes_H: Tensor, layout: ChunkLayout, dtype: torch.dtype) -> _Decays:
    size = layout.chunk
    step_C = torch.arange(size, device=slopes_H.device, dtype=dtype)
    s_H11 = slopes_H.to(dtype)[:, None, None]
    gap_CC = step_C[:, None] - step_C[None, :]
    inside_HCC = torch.exp(-s_H11 * gap_CC.clamp_min(0)).tril()
    read = torch.exp(-s_H11 * (step_C[:, None] + 1))[None, :, None]
    write = torch.exp(-s_H11 * (size - 1 - step_C[:, None]))[None, :, None]
    carry = torch.exp(-s_H11 * size)[None, :, None]
    if layout.reads_BnC is not None:
        assert layout.writes_BnC is not None and layout.carries_Bn is not None
        read = read * layout.reads_BnC[:, None, :, :, None]
        write = write * layout.writes_BnC[:, None, :, :, None]
        carry = carry * layout.carries_Bn[:, None, :, None, None]
    return _Decays(read, write, carry, inside_HCC)


def _mask_inside(scores: Tensor, decays: _Decays, layout: ChunkLayout) -> Tensor:
    """Multiply [B, H, n, C, C] in place by the causal decay and the document mask."""
    scores.mul_(decays.inside_HCC[None, :, None])
    if layout.same_BnCC is not None:
        scores.mul_(layout.same_BnCC[:, None])
    return scores


def _incoming_states(update: Tensor, carry: Tensor) -> Tensor:
    """Turn each chunk's own k^T v, [B, H, n, D, D], into the state before each chunk."""
    states = torch.zeros_like(update)
    for chunk in range(1, update.shape[2]):
        decay = carry[:, :, min(chunk - 1, carry.shape[2] - 1)]
        torch.addcmul(
            update[:, :, chunk - 1], states[:, :, chunk - 1], decay, out=states[:, :, chunk]
        )
    return states


def _outgoing_gradients(pull: Tensor, carry: Tensor) -> Tensor:
    """Reverse of `_incoming_states`: the gradient of the state after each chunk."""
    grads = torch.zeros_like(pull)
    for chunk in range(pull.shape[2] - 2, -1, -1):
        decay = carry[:, :, min(chunk + 1, carry.shape[2] - 1)]
        torch.addcmul(pull[:, :, chunk + 1], grads[:, :, chunk + 1], decay, out=grads[:, :, chunk])
    return grads


class Activated(NamedTuple):
    """SiLU(q), SiLU(k), SiLU(v), each [B, H, n, C, D] in fp32, zero beyond T."""

    q: Tensor
    k: Tensor
    v: Tensor


def silu_heads(x_BTE: Tensor, heads: int, layout: ChunkLayout) -> Activated:
    """Apply SiLU to [B, T, H x (q|k|v) x D] and cut it into chunked heads, zero-filled."""
    rows, tokens, width = x_BTE.shape
    dim = width // (3 * heads)
    if operations.usable(x_BTE):
        parts = operations.silu_heads(x_BTE, heads, layout.padded)
        return Activated(*(p.view(rows, heads, layout.count, layout.chunk, dim) for p in parts))
    active = nn.functional.silu(x_BTE.to(at_least_float32(x_BTE.dtype)))
    if layout.padded > tokens:
        active = nn.functional.pad(active, (0, 0, 0, layout.padded - tokens))
    split = active.view(rows, layout.count, layout.chunk, heads, 3, dim)
    q, k, v = split.permute(4, 0, 3, 1, 2, 5).contiguous().unbind(0)
    return Activated(q, k, v)


def _silu_heads_backward(x_BTE: Tensor, grads: Activated, layout: ChunkLayout) -> Tensor:
    """Return the gradient of [B, T, H x (q|k|v) x D], in its type."""
    rows, heads, count, size, dim = grads.q.shape
    if operations.usable(x_BTE, *grads):
        dq, dk, dv = (g.view(rows, heads, count * size, dim) for g in grads)
        return operations.silu_heads_backward(x_BTE, dq, dk, dv, heads)
    packed = torch.stack(grads).permute(1, 3, 4, 2, 0, 5)
    dactive = packed.reshape(rows, layout.padded, -1)[:, : layout.tokens]
    wide = x_BTE.to(dactive.dtype)
    gate = torch.sigmoid(wide)
    active = wide * gate
    # d silu(x) / dx = sigmoid(x) (1 + x (1 - sigmoid(x))) = gate + active (1 - gate)
    slope = torch.addcmul(gate + active, active, gate, value=-1)
    return slope.mul_(dactive).to(x_BTE.dtype)


def _merge_heads(o: Tensor, layout: ChunkLayout) -> Tensor:
    """Rearrange [B, H, n, C, D] into [B, T, H x D]."""
    rows, heads, _, _, dim = o.shape
    merged = o.permute(0, 2, 3, 1, 4).reshape(rows, layout.padded, heads * dim)
    return merged[:, : layout.tokens]


def _attend(qkv: Activated, decays: _Decays, layout: ChunkLayout) -> tuple[Tensor, Tensor]:
    """Return o [B, H, n, C, D] and the states before each chunk [B, H, n, D, D]."""
    q, k, v = qkv
    scores = _mask_inside(q @ k.transpose(-1, -2), decays, layout)
    o = scores @ v
    if layout.count == 1:
        return o, q.new_zeros(0)
    states = _incoming_states((k * decays.write).transpose(-1, -2) @ v, decays.carry)
    o += (q * decays.read) @ states
    return o, states


class _Lightning(torch.autograd.Function):
    """SiLU, chunked attention and the way back, in one node of the autograd graph."""

    @staticmethod
    def forward(
        ctx: Any, qkv_BTE: Tensor, slopes_H: Tensor, heads: int, layout: ChunkLayout
    ) -> Tensor:
        qkv = silu_heads(qkv_BTE, heads, layout)
        decays = _decays(slopes_H, layout, qkv.q.dtype)
        o, states = _attend(qkv, decays, layout)
        ctx.save_for_backward(*qkv, states, qkv_BTE)
        ctx.decays, ctx.layout = decays, layout
        return _merge_heads(o, layout).to(qkv_BTE.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        q, k, v, states, x_BTE = ctx.saved_tensors
        layout: ChunkLayout = ctx.layout
        decays: _Decays = ctx.decays
        rows, heads, count, size, dim = q.shape
        grad = grads[0].to(q.dtype)
        if layout.padded > layout.tokens:
            grad = nn.functional.pad(grad, (0, 0, 0, layout.padded - layout.tokens))
        do = grad.reshape(rows, count, size, heads, dim).permute(0, 3, 1, 2, 4).contiguous()
        scores = _mask_inside(q @ k.transpose(-1, -2), decays, layout)
        dscores = _mask_inside(do @ v.transpose(-1, -2), decays, layout)
        dq = dscores @ k
        dk = dscores.transpose(-1, -2) @ q
        dv = scores.transpose(-1, -2) @ do
        if count > 1:
            pull = (q * decays.read).transpose(-1, -2) @ do
            dstate = _outgoing_gradients(pull, decays.carry)
            dq += (do @ states.transpose(-1, -2)).mul_(decays.read)
            dk += (v @ dstate.transpose(-1, -2)).mul_(decays.write)
            dv += (k * decays.write) @ dstate
        return _silu_heads_backward(x_BTE, Activated(dq, dk, dv), layout), None, None, None


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
        return _Lightning.apply(qkv_BTE, slopes_H, heads, layout)  # type: ignore[no-untyped-call, no-any-return]


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
        q, k, v = silu_heads(qkv.float(), self.heads, layout)
        decays = _decays(self.slopes_H, layout, torch.float32)
        o, _ = _attend(Activated(q, k, v), decays, layout)
        age_BT = lengths_B[:, None] - 1 - torch.arange(layout.padded, device=x_BTE.device)
        weight_BHT = torch.exp(-self.slopes_H[:, None] * age_BT[:, None].clamp_min(0))
        weight_BHT = weight_BHT * (age_BT >= 0)[:, None]
        k_BHTD, v_BHTD = k.flatten(2, 3), v.flatten(2, 3)
        state = (k_BHTD * weight_BHT[..., None]).transpose(-1, -2) @ v_BHTD
        return self._finish(_merge_heads(o, layout).to(x_BTE.dtype), gate), state

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
