from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstride.training.schedules import constant, constant_then_decay, cosine


def test_the_rate_warms_up_holds_and_decays_to_its_final_value():
    rate = constant_then_decay(8e-5, 8e-6, steps=90, constant_fraction=1 / 3, warmup=10)
    assert rate(0) == pytest.approx(8e-6)
    assert [rate(step) for step in (10, 20, 30)] == [8e-5] * 3
    assert rate(89) == pytest.approx(8e-6)


def test_the_decay_starts_after_its_share_of_steps_and_halves_the_exponent_half_way():
    rate = constant_then_decay(1.0, 0.01, steps=91, constant_fraction=1 / 3, warmup=0)
    assert rate(30) == 1.0 > rate(31)
    assert rate(60) == pytest.approx(0.1)
    assert rate(31) / rate(32) == pytest.approx(100 ** (1 / 60))


@pytest.mark.parametrize("steps", [2, 3, 10, 91])
@pytest.mark.parametrize("warmup", [0, 1])
def test_the_last_step_has_the_final_rate_and_the_warm_up_ends_at_the_peak(steps, warmup):
    decay = constant_then_decay(1.0, 0.1, steps, 1 / 3, warmup)
    for rate in (decay, cosine(1.0, 0.1, steps, warmup)):
        if steps - 1 > warmup:
            assert rate(steps - 1) == pytest.approx(0.1)
        assert rate(max(0, warmup - 1)) == 1.0


def test_a_constant_share_of_one_never_decays():
    rate = constant_then_decay(1.0, 0.1, 50, 1.0, 5)
    assert {rate(step) for step in range(4, 50)} == {1.0}


def test_the_cosine_is_half_way_in_the_middle():
    rate = cosine(1.0, 0.0, steps=101, warmup=0)
    assert (rate(0), rate(50), rate(100)) == pytest.approx((1.0, 0.5, 0.0))


@given(
    peak=st.floats(1e-6, 1), share=st.floats(0.01, 1), steps=st.integers(2, 500),
    warmup=st.integers(0, 50), constant_fraction=st.floats(0, 1),
)  # fmt: skip
def test_no_schedule_leaves_its_bounds_or_rises_after_warm_up(
    peak, share, steps, warmup, constant_fraction
):
    final = peak * share
    for rate in (
        constant_then_decay(peak, final, steps, constant_fraction, warmup),
        cosine(peak, final, steps, warmup),
        constant(peak),
    ):
        rates = [rate(step) for step in range(warmup, max(steps, warmup + 1))]
        assert all(final * (1 - 1e-9) <= r <= peak * (1 + 1e-9) for r in rates)
        assert all(b <= a * (1 + 1e-12) for a, b in pairwise(rates))
