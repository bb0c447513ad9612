"""Lightning attention against its recurrence, spelled out token by token."""

import math

import pytest
import torch

from longstride.model.layout import chunk_layout
from longstride.model.lightning import decay_slopes, lightning_attention


def recurrence(qkv: torch.Tensor, slopes: torch.Tensor, segments: torch.Tensor) -> torch.Tensor:
    """S_t = exp(-s) S_{t-1} + k_t v_t^T from zero at each document; o_t = q_t S_t."""
    rows, tokens, width = qkv.shape
    heads = len(slopes)
    q, k, v = torch.nn.functional.silu(qkv).view(rows, tokens, heads, 3, -1).unbind(3)
    out = torch.zeros_like(q)
    for row in range(rows):
        state = torch.zeros(heads, q.shape[-1], q.shape[-1], dtype=qkv.dtype)
        for t in range(tokens):
            if t and segments[row, t] != segments[row, t - 1]:
                state = torch.zeros_like(state)
            state = torch.exp(-slopes)[:, None, None] * state
            state = state + k[row, t, :, :, None] * v[row, t, :, None, :]
            out[row, t] = (q[row, t, :, None, :] @ state)[:, 0]
    return out.reshape(rows, tokens, width // 3)


def inputs(tokens: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    generator = torch.Generator().manual_seed(tokens)
    return torch.randn(2, tokens, 2 * 3 * 4, generator=generator, dtype=dtype)


SLOPES = torch.tensor([0.5, 0.05], dtype=torch.float64)
PACKED = torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2], [0, 0, 0, 0, 0, 0, 0, 1, 2, -1, -1]])


@pytest.mark.parametrize("chunk", [1, 2, 4, 11])
@pytest.mark.parametrize("packed", [False, True])
def test_chunks_equal_the_recurrence(chunk: int, packed: bool) -> None:
    segments = PACKED if packed else torch.zeros_like(PACKED)
    layout = chunk_layout(11, chunk, PACKED if packed else None)
    got = lightning_attention(inputs(11), SLOPES, 2, layout)
    torch.testing.assert_close(got, recurrence(inputs(11), SLOPES, segments))


@pytest.mark.parametrize("chunk", [2, 4, 11])
@pytest.mark.parametrize("packed", [False, True])
def test_gradient_is_exact(chunk: int, packed: bool) -> None:
    layout = chunk_layout(11, chunk, PACKED if packed else None)
    qkv = inputs(11).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: lightning_attention(x, SLOPES, 2, layout), (qkv,))


def test_fast_decay_over_long_rows_neither_overflows_nor_loses_the_present() -> None:
    slopes = torch.tensor([20.0, 1e-6])
    qkv = inputs(700, torch.float32).requires_grad_()
    out = lightning_attention(qkv, slopes, 2, chunk_layout(700, 64))
    out.sum().backward()
    assert out.isfinite().all() and qkv.grad.isfinite().all()
    want = recurrence(qkv.detach(), slopes, torch.zeros(2, 700))
    torch.testing.assert_close(out.detach(), want, atol=1e-3, rtol=1e-4)


def test_slopes_of_the_published_layout() -> None:
    """Head h of layer l in M1: 2^(-8(h+1)/64) (1 - l/79 + 1e-5)."""
    slopes = decay_slopes(64, 8, 80)
    assert slopes[0].item() == pytest.approx(2 ** (-1 / 8) * (1 - 8 / 79 + 1e-5), rel=1e-6)
    assert slopes[63].item() == pytest.approx(2**-8 * (1 - 8 / 79 + 1e-5), rel=1e-6)


def test_slopes_of_odd_head_counts_interleave_as_alibi_does() -> None:
    """ALiBi: the powers of two below, then every other slope of the next power of two."""
    base = [slope / (1 + 1e-5) for slope in decay_slopes(3, 0, 8).tolist()]
    assert base == pytest.approx([2**-4, 2**-8, 2**-2], rel=1e-6)


def test_the_last_layer_barely_forgets() -> None:
    keeps = torch.exp(-decay_slopes(4, 7, 8) * 1000)
    assert all(0.99 < keep < 1.0 for keep in keeps.tolist())
    assert math.exp(-decay_slopes(4, 0, 8)[0].item() * 1000) < 1e-100
