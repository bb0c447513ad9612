"""Every kernel against the same formula in fp64 PyTorch operations and torch's own autograd."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longstride.model.kernels import operations
from longstride.model.kernels.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="this machine has no C compiler")

sizes = st.integers(1, 19)
seeds = st.integers(0, 2**31)


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def close(got, want):
    torch.testing.assert_close(got.double(), want.double(), atol=2e-5, rtol=2e-5)


def rms(x, weight, eps):
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * weight


def gradients(function, grad, *inputs):
    wide = [tensor.double().requires_grad_() for tensor in inputs]
    return torch.autograd.grad(function(*wide), wide, grad.double())


@given(sizes, sizes, seeds)
def test_rms_norm_and_its_gradients(rows, width, seed):
    x, weight, grad = drawn(seed, rows, width), drawn(seed + 1, width), drawn(seed + 2, rows, width)
    y, scale = operations.rms_norm(x, weight, 1e-3)
    close(y, rms(x.double(), weight.double(), 1e-3))
    got = operations.rms_norm_backward(grad, x, weight, scale)
    want = gradients(lambda a, b: rms(a, b, 1e-3), grad, x, weight)
    for mine, theirs in zip(got, want, strict=True):
        close(mine, theirs)


@given(sizes, sizes, seeds)
def test_gated_norm_and_its_gradients_with_the_gate_inside_a_wider_row(rows, width, seed):
    o, weight, wide = (
        drawn(seed, rows, width),
        drawn(seed + 1, width),
        drawn(seed + 2, rows, width + 5),
    )
    gate, grad = wide[:, 5:], drawn(seed + 3, rows, width)
    y, scale = operations.gated_norm(o, weight, gate, 1e-3)

    def formula(a, b, c):
        return rms(a, b, 1e-3) * c.sigmoid()

    close(y, formula(o.double(), weight.double(), gate.double()))
    got = operations.gated_norm_backward(grad, o, weight, gate, scale)
    for mine, theirs in zip(got, gradients(formula, grad, o, weight, gate), strict=True):
        close(mine, theirs)


def formula_of_swiglu(pre):
    gate, up = pre.chunk(2, dim=-1)
    return torch.nn.functional.silu(gate) * up


@given(sizes, sizes, seeds)
def test_swiglu_and_its_gradient(rows, width, seed):
    pre, grad = 3 * drawn(seed, rows, 2 * width), drawn(seed + 1, rows, width)
    close(operations.swiglu(pre), formula_of_swiglu(pre.double()))
    close(operations.swiglu_backward(pre, grad), gradients(formula_of_swiglu, grad, pre)[0])


@given(st.integers(1, 3), sizes, st.integers(0, 5), st.integers(1, 3), sizes, seeds)
def test_silu_heads_and_its_gradient(batch, tokens, surplus, heads, dim, seed):
    wide = drawn(seed, batch, tokens, 3 * heads * dim + 2)
    x, padded = wide[..., : 3 * heads * dim], tokens + surplus
    grads = drawn(seed + 1, 3, batch, heads, padded, dim)

    def formula(values):
        parts = torch.nn.functional.silu(values).view(batch, tokens, heads, 3, dim)
        parts = parts.permute(3, 0, 2, 1, 4)
        return torch.nn.functional.pad(parts, (0, 0, 0, surplus))

    close(torch.stack(operations.silu_heads(x, heads, padded)), formula(x.double()))
    got = torch.empty(batch, tokens + 1, x.shape[-1])[:, :tokens]
    operations.silu_heads_backward(x, *grads.unbind(0), heads, got)
    close(got, gradients(formula, grads, x)[0])


@given(sizes, st.integers(1, 3), sizes, seeds)
def test_a_lightning_step(rows, heads, dim, seed):
    width = heads * dim
    x, weight = drawn(seed, rows, 4 * width), drawn(seed + 1, width)
    decay, state = drawn(seed + 2, heads).sigmoid(), drawn(seed + 3, rows, heads, dim, dim)
    active = torch.nn.functional.silu(x[:, : 3 * width].double()).view(rows, heads, 3, 1, dim)
    q, k, v = active.unbind(2)
    want = decay.double()[:, None, None] * state.double() + k.transpose(-1, -2) @ v
    o = (q @ want).reshape(rows, width)
    y = operations.lightning_step(x, decay, weight, 1e-3, state)
    close(state, want)
    close(y, rms(o, weight.double(), 1e-3) * x[:, 3 * width :].double().sigmoid())


@given(sizes, sizes, seeds)
def test_adding_and_norming(rows, width, seed):
    update, base = drawn(seed, rows, width), drawn(seed + 1, rows, width)
    weight = drawn(seed + 2, width)
    want = update.double() + 2.5 * base.double()
    total, normed = operations.add_norm(update, base, 2.5, weight, 1e-3)
    close(total, want)
    close(normed, rms(want, weight.double(), 1e-3))


@given(sizes, st.integers(2, 9), st.data(), seeds)
def test_routing_is_top_k_sorted_by_expert(tokens, experts, data, seed):
    top_k = data.draw(st.integers(1, experts))
    logits = drawn(seed, tokens, experts)
    weights, chosen, slots, source, ends = operations.route(logits, top_k)
    top, order = logits.topk(top_k, dim=-1)
    assert torch.equal(chosen, order)
    close(weights, top.softmax(-1))
    sorted_experts, by_expert = chosen.flatten().sort(stable=True)
    assert torch.equal(source, by_expert // top_k)
    assert torch.equal(sorted_experts[slots], chosen)
    assert ends.tolist() == chosen.flatten().bincount(minlength=experts).cumsum(0).tolist()


@given(sizes, st.integers(1, 4), sizes, seeds, st.booleans())
def test_combining_experts(tokens, top_k, width, seed, with_base):
    y, weights = drawn(seed, tokens * top_k, width), drawn(seed + 1, tokens, top_k)
    generator = torch.Generator().manual_seed(seed)
    slots = torch.randperm(tokens * top_k, generator=generator).view(tokens, top_k)
    base = drawn(seed + 2, tokens, width) if with_base else None
    want = (y[slots].double() * weights[..., None].double()).sum(1)
    if base is not None:
        want = want + 1.5 * base.double()
    close(operations.combine(y, weights, slots, base, 1.5), want)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_values_that_are_not_finite_pass_through(bad):
    x = torch.ones(2, 8)
    x[0, 3] = bad
    weight = torch.ones(8)
    for result in (
        operations.rms_norm(x, weight, 1e-5)[0],
        operations.gated_norm(x, weight, torch.ones(2, 8), 1e-5)[0],
        operations.add_norm(x.clone(), torch.ones(2, 8), 1.0, weight, 1e-5)[1],
    ):
        assert not torch.isfinite(result[0]).all()
        assert torch.isfinite(result[1]).all()


def test_a_router_logit_that_is_not_a_number_reaches_the_weights():
    logits = torch.tensor([[0.0, math.nan, 1.0], [0.0, 1.0, 2.0]])
    weights = operations.route(logits, 2)[0]
    assert weights[0].isnan().all() and torch.isfinite(weights[1]).all()


@given(st.floats(-80, 80, width=32))
def test_the_sigmoid_is_accurate_to_a_few_units_in_the_last_place(value):
    pre = torch.tensor([[value, 1.0]])
    want = value / (1.0 + math.exp(-value))
    assert operations.swiglu(pre).item() == pytest.approx(want, rel=6e-7, abs=1e-36)


def test_small_numbers_are_not_flushed_to_zero():
    """Optimizer arithmetic needs them, and fast-math code would switch them off for the process."""
    operations.swiglu(torch.ones(1, 2))
    assert torch.tensor([1e-40]).mul(1.0).item() > 0.0


def test_other_types_and_the_meta_device_are_left_to_torch():
    assert not operations.usable(torch.ones(2, dtype=torch.float64))
    assert not operations.usable(torch.ones(2, dtype=torch.bfloat16))
    assert not operations.usable(torch.ones(2, device="meta"))
