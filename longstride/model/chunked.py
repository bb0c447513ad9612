"""The lightning operator in its chunked form, forward and backward, in parts that fit the cache.

Inside a chunk the sum is a masked matrix product; between chunks only the state travels:

    o_i = (q_i k_i^T o M) v_i + lambda^(.) q_i S_i,    S_i+1 = lambda^C S_i + (lambda^(.) k_i)^T v_i

The state starts from zero at every document of a packed row. Everything here accumulates in fp32.
q, k and v are recomputed backward: only the projection and the states between chunks are kept.

Legend: B rows, T tokens, n chunks of C tokens, H heads, D head width.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from longstride.model.kernels import operations
from longstride.model.layout import ChunkLayout
from longstride.model.norms import at_least_float32

_PART_ELEMENTS = 1 << 17
"""Scores held at a time: 512 kB, so that a token costs the same in rows of any length."""


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


@dataclass(frozen=True)
class Part:
    """A run of chunks of all rows, worked on at once."""

    chunks: slice
    tokens: slice
    """Never beyond T; the last chunk is zero-filled."""
    count: int
    """Chunks in this part."""


def _parts(layout: ChunkLayout, batch: int) -> list[Part]:
    size = max(1, _PART_ELEMENTS // (batch * layout.chunk**2))
    parts = []
    for first in range(0, layout.count, size):
        last = min(layout.count, first + size)
        tokens = slice(first * layout.chunk, min(layout.tokens, last * layout.chunk))
        parts.append(Part(slice(first, last), tokens, last - first))
    return parts


class Activated(NamedTuple):
    """SiLU(q), SiLU(k), SiLU(v), each [B, H, n, C, D] in fp32, zero beyond T."""

    q: Tensor
    k: Tensor
    v: Tensor


def _activate(x_BTE: Tensor, heads: int, part: Part, chunk: int) -> Activated:
    """Apply SiLU to one part of [B, T, H x (q|k|v) x D] and cut it into chunked heads."""
    x = x_BTE[:, part.tokens]
    rows, tokens, width = x.shape
    dim, padded = width // (3 * heads), part.count * chunk
    if operations.usable(x):
        flat = operations.silu_heads(x, heads, padded)
        return Activated(*(tensor.view(rows, heads, part.count, chunk, dim) for tensor in flat))
    active = nn.functional.silu(x.to(at_least_float32(x.dtype)))
    if padded > tokens:
        active = nn.functional.pad(active, (0, 0, 0, padded - tokens))
    split = active.view(rows, part.count, chunk, heads, 3, dim)
    q, k, v = split.permute(4, 0, 3, 1, 2, 5).contiguous().unbind(0)
    return Activated(q, k, v)


def activated_parts(
    x_BTE: Tensor, heads: int, layout: ChunkLayout
) -> Iterator[tuple[Part, Activated]]:
    """Yield the row in parts, from left to right."""
    for part in _parts(layout, x_BTE.shape[0] * heads):
        yield part, _activate(x_BTE, heads, part, layout.chunk)


def _activate_backward(x_BTE: Tensor, grads: Activated, part: Part, out_BTE: Tensor) -> None:
    """Write the gradient of one part of the projection into `out_BTE`."""
    x, out = x_BTE[:, part.tokens], out_BTE[:, part.tokens]
    rows, heads, count, chunk, dim = grads.q.shape
    if operations.usable(x, *grads):
        dq, dk, dv = (grad.view(rows, heads, count * chunk, dim) for grad in grads)
        operations.silu_heads_backward(x, dq, dk, dv, heads, out)
        return
    packed = torch.stack(grads).permute(1, 3, 4, 2, 0, 5)
    dactive = packed.reshape(rows, count * chunk, -1)[:, : x.shape[1]]
    wide = x.to(dactive.dtype)
    gate = torch.sigmoid(wide)
    active = wide * gate
    # d silu(x) / dx = sigmoid(x) (1 + x (1 - sigmoid(x))) = gate + active (1 - gate)
    slope = torch.addcmul(gate + active, active, gate, value=-1)
    out.copy_(slope.mul_(dactive))


def _merge_heads(o: Tensor, tokens: int) -> Tensor:
    """Rearrange [B, H, n, C, D] into [B, tokens, H x D]."""
    rows, heads, count, chunk, dim = o.shape
    return o.permute(0, 2, 3, 1, 4).reshape(rows, count * chunk, heads * dim)[:, :tokens]


def _split_heads(grad_BTW: Tensor, heads: int, part: Part, chunk: int) -> Tensor:
    """Reverse of `_merge_heads` for one part, zero-filled."""
    grad = grad_BTW[:, part.tokens]
    rows, tokens, width = grad.shape
    if part.count * chunk > tokens:
        grad = nn.functional.pad(grad, (0, 0, 0, part.count * chunk - tokens))
    split = grad.reshape(rows, part.count, chunk, heads, width // heads)
    return split.permute(0, 3, 1, 2, 4).contiguous()


def _of(decay: Tensor, chunks: slice) -> Tensor:
    """Return a part of read, write or carry, which may be one for all chunks."""
    return decay[:, :, chunks] if decay.shape[2] > 1 else decay


def _mask_inside(scores: Tensor, decays: _Decays, layout: ChunkLayout, chunks: slice) -> Tensor:
    """Multiply [B, H, n, C, C] in place by the causal decay and the document mask."""
    scores.mul_(decays.inside_HCC[None, :, None])
    if layout.same_BnCC is not None:
        scores.mul_(layout.same_BnCC[:, None, chunks])
    return scores


def _scan(steps: Tensor, carry: Tensor, last: Tensor, *, reverse: bool) -> tuple[Tensor, Tensor]:
    """Return s with s_0 = last, s_i+1 = carry_i s_i + steps_i along chunks, and what follows s.

    Args:
        steps: each chunk's own k^T v, or the pull of its outputs on the state, [B, H, n, D, D].
        carry: lambda^C of each chunk, or of all.
        last: state before the first chunk; with `reverse` the gradient after the last one.
        reverse: go from the last chunk to the first.
    """
    states = torch.empty_like(steps)
    order = range(steps.shape[2])
    for chunk in reversed(order) if reverse else order:
        states[:, :, chunk] = last
        decay = carry[:, :, chunk if carry.shape[2] > 1 else 0]
        last = torch.addcmul(steps[:, :, chunk], last, decay)
    return states, last


def _forward(
    x_BTE: Tensor, decays: _Decays, heads: int, layout: ChunkLayout
) -> tuple[Tensor, Tensor]:
    """Return o [B, T, H x D] in fp32 and the states before each chunk [B, H, n, D, D]."""
    rows, tokens, width = x_BTE.shape
    dim, like = width // (3 * heads), decays.inside_HCC
    out = like.new_empty(rows, tokens, heads * dim)
    states = like.new_empty(rows, heads, layout.count if layout.count > 1 else 0, dim, dim)
    last = like.new_zeros(rows, heads, dim, dim)
    for part, (q, k, v) in activated_parts(x_BTE, heads, layout):
        o = _mask_inside(q @ k.transpose(-1, -2), decays, layout, part.chunks) @ v
        if layout.count > 1:
            update = (k * _of(decays.write, part.chunks)).transpose(-1, -2) @ v
            before, last = _scan(update, _of(decays.carry, part.chunks), last, reverse=False)
            o += (q * _of(decays.read, part.chunks)) @ before
            states[:, :, part.chunks] = before
        out[:, part.tokens] = _merge_heads(o, part.tokens.stop - part.tokens.start)
    return out, states


def _backward_part(
    g: Tensor,
    qkv: Activated,
    states: Tensor | None,
    decays: _Decays,
    layout: ChunkLayout,
    chunks: slice,
    last: Tensor,
) -> tuple[Activated, Tensor]:
    """Return the gradients of q, k, v and of the state before the part, from that of o."""
    q, k, v = qkv
    scores = _mask_inside(q @ k.transpose(-1, -2), decays, layout, chunks)
    dscores = _mask_inside(g @ v.transpose(-1, -2), decays, layout, chunks)
    dq, dk, dv = dscores @ k, dscores.transpose(-1, -2) @ q, scores.transpose(-1, -2) @ g
    if states is not None:
        read, write = _of(decays.read, chunks), _of(decays.write, chunks)
        pull = (q * read).transpose(-1, -2) @ g
        dstate, last = _scan(pull, _of(decays.carry, chunks), last, reverse=True)
        dq += (g @ states.transpose(-1, -2)).mul_(read)
        dk += (v @ dstate.transpose(-1, -2)).mul_(write)
        dv += (k * write) @ dstate
    return Activated(dq, dk, dv), last


class _Lightning(torch.autograd.Function):
    """SiLU, chunked attention and the way back, in one node of the autograd graph."""

    @staticmethod
    def forward(
        ctx: Any, x_BTE: Tensor, slopes_H: Tensor, heads: int, layout: ChunkLayout
    ) -> Tensor:
        decays = _decays(slopes_H, layout, at_least_float32(x_BTE.dtype))
        out, states = _forward(x_BTE, decays, heads, layout)
        ctx.save_for_backward(x_BTE, states)
        ctx.decays, ctx.layout, ctx.heads = decays, layout, heads
        return out.to(x_BTE.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Any) -> tuple[Tensor, None, None, None]:
        x, states = ctx.saved_tensors
        layout: ChunkLayout = ctx.layout
        heads, decays = ctx.heads, ctx.decays
        rows, _, width = x.shape
        dim, chunk = width // (3 * heads), layout.chunk
        dx = torch.empty_like(x, memory_format=torch.contiguous_format)
        last = states.new_zeros(rows, heads, dim, dim)
        for part in reversed(_parts(layout, rows * heads)):
            qkv = _activate(x, heads, part, chunk)
            g = _split_heads(grads[0].to(states.dtype), heads, part, chunk)
            before = states[:, :, part.chunks] if layout.count > 1 else None
            pulled, last = _backward_part(g, qkv, before, decays, layout, part.chunks, last)
            _activate_backward(x, pulled, part, dx)
        return dx, None, None, None


def chunked_attention(x_BTE: Tensor, slopes_H: Tensor, heads: int, layout: ChunkLayout) -> Tensor:
    """Return o [B, T, H x D] for the projection [B, T, H x (q|k|v) x D] *before* its SiLU.

    Gradients flow to `x_BTE` only: the decay is a constant of the architecture.
    """
    return _Lightning.apply(x_BTE, slopes_H, heads, layout)  # type: ignore[no-untyped-call, no-any-return]


def final_state(
    x_BTE: Tensor, slopes_H: Tensor, heads: int, layout: ChunkLayout, lengths_B: Tensor
) -> Tensor:
    """Return the fp32 state [B, H, D, D] after the first `lengths_B` tokens of each row.

    The rows are one document each.
    """
    state: Tensor | None = None
    for part, (_, k, v) in activated_parts(x_BTE.float(), heads, layout):
        first = part.chunks.start * layout.chunk
        position_T = torch.arange(first, first + part.count * layout.chunk, device=x_BTE.device)
        age_BT = lengths_B[:, None] - 1 - position_T
        weight_BHT = torch.exp(-slopes_H[:, None] * age_BT[:, None].clamp_min(0))
        weight_BHT = weight_BHT * (age_BT >= 0)[:, None]
        added = (k.flatten(2, 3) * weight_BHT[..., None]).transpose(-1, -2) @ v.flatten(2, 3)
        state = added if state is None else state + added
    assert state is not None
    return state
