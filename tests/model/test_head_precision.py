"""The fp32-head experiment; bf16 rounding is checked against torch's own bf16 type."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longstride.model.head_precision import (
    compare_sides,
    disturb,
    round_bfloat16,
    sampler_logits,
    trainer_logits,
)


def inputs(gain: float = 1.0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    hidden = gain * torch.randn(512, 64, generator=generator)
    return round_bfloat16(hidden), torch.randn(128, 64, generator=generator) / 2


def correlation(gain: float, precision, disturbed: float) -> float:
    hidden, weight = inputs(gain)
    generator = torch.Generator().manual_seed(1)
    sides = compare_sides(hidden, weight, precision, generator, disturbed)
    return float(torch.corrcoef(torch.stack([sides.trainer_N, sides.sampler_N]).exp())[0, 1])


@pytest.mark.parametrize("gain", [0.5, 1.0, 2.0, 4.0, 8.0])
@pytest.mark.parametrize("disturbed", [0.0, 0.25])
def test_an_fp32_head_brings_both_sides_nearer_at_every_gain(gain, disturbed):
    assert correlation(gain, "float32", disturbed) > correlation(gain, "bfloat16", disturbed)


def test_an_fp32_head_alone_moves_no_importance_ratio_by_a_percent():
    hidden, weight = inputs(gain=4.0)
    sides = compare_sides(hidden, weight, "float32", torch.Generator().manual_seed(0))
    assert ((sides.trainer_N - sides.sampler_N).exp() - 1).abs().max() < 0.01


def test_equal_generators_give_equal_results():
    first, second = (
        compare_sides(*inputs(), "bfloat16", torch.Generator().manual_seed(3), 0.25)
        for _ in range(2)
    )
    assert torch.equal(first.trainer_N, second.trainer_N)
    assert torch.equal(first.sampler_N, second.sampler_N)


@pytest.mark.parametrize("logits", [trainer_logits, sampler_logits])
def test_fp32_logits_are_the_matrix_product(logits):
    hidden, weight = inputs()
    want = (hidden.double() @ weight.double().t()).float()
    torch.testing.assert_close(logits(hidden, weight, "float32"), want, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("logits", [trainer_logits, sampler_logits])
def test_bf16_logits_are_bf16_values_near_the_product(logits):
    hidden, weight = inputs()
    got = logits(hidden, weight, "bfloat16")
    assert torch.equal(got, got.to(torch.bfloat16).float())
    torch.testing.assert_close(got, hidden @ weight.t(), atol=0.2, rtol=0.02)


@given(st.floats(-(2.0**60), 2.0**60, width=32))
def test_a_disturbed_value_is_a_neighbour_in_bf16(value):
    exact = round_bfloat16(torch.full((1, 64), value))
    moved = disturb(exact, 1.0, torch.Generator().manual_seed(0)).to(torch.bfloat16)
    up, down = (
        torch.nextafter(exact.to(torch.bfloat16), torch.tensor(end, dtype=torch.bfloat16))
        for end in (float("inf"), float("-inf"))
    )
    if value != 0.0 and abs(value) > 1e-30:
        assert bool(((moved == up) | (moved == down)).all())


def test_the_share_of_disturbed_values_is_the_one_asked_for():
    exact = torch.ones(200, 100)
    moved = disturb(exact, 0.25, torch.Generator().manual_seed(0)) != exact
    assert float(moved.double().mean()) == pytest.approx(0.25, abs=0.015)
