import math

import numpy as np
import pytest
from scipy import stats

from benchmarks.figure2.step_ratio import (
    LAST,
    band,
    final_level,
    mean_curve,
    quantile,
    reached_at,
    step_ratio,
)

STEPS = [16.0 * batch for batch in range(41)]


def ramp(batches, top=1.0):
    """From 0 to `top` in a straight line over so many batches."""
    return [min(top, top * batch / batches) for batch in range(len(STEPS))]


def test_a_level_is_reached_between_evaluations_where_the_line_says():
    assert reached_at([0.0, 0.5, 0.7], [0, 10, 20], 0.6) == pytest.approx(15.0)
    assert reached_at([0.0, 0.5, 0.7], [0, 10, 20], 0.5) == pytest.approx(10.0)
    assert reached_at([0.6, 0.5], [0, 10], 0.6) == 0


def test_a_level_that_is_never_reached_is_at_infinity():
    assert reached_at([0.0, 0.5, 0.7], [0, 10, 20], 0.8) == math.inf


def test_the_first_crossing_counts_even_when_the_curve_falls_back():
    assert reached_at([0.0, 1.0, 0.0, 1.0], [0, 10, 20, 30], 0.5) == pytest.approx(5.0)


def test_an_algorithm_twice_as_fast_has_the_ratio_one_half_at_every_level():
    fast, slow = [ramp(10)] * 5, [ramp(20)] * 5
    for share in (0.5, 0.9, 1.0):
        found = step_ratio(fast, slow, STEPS, share, resamples=50)
        assert (found.value, found.low, found.high) == pytest.approx((0.5, 0.5, 0.5))
        assert found.unreached == 0.0


def test_of_the_budget_the_ratio_is_to_the_last_step():
    found = step_ratio([ramp(10)] * 5, [ramp(20)] * 5, STEPS, of_budget=True, resamples=50)
    assert found.value == pytest.approx(0.25)


def test_never_reaching_the_level_is_an_infinite_ratio_and_counted():
    found = step_ratio([ramp(10, 0.8)] * 5, [ramp(20)] * 5, STEPS, resamples=50)
    assert found.value == found.low == found.high == math.inf
    assert found.unreached == 1.0


def test_equal_algorithms_have_an_interval_around_one():
    rng = np.random.default_rng(0)
    first, second = ([ramp(b) for b in rng.uniform(10, 20, 8)] for _ in range(2))
    found = step_ratio(first, second, STEPS, 0.9, resamples=500)
    assert found.low < 1.0 < found.high


def test_the_bootstrap_interval_is_scipys():
    """Curves that are straight lines make the ratio a smooth function of resampled slopes."""
    rng = np.random.default_rng(1)
    slopes = rng.uniform(0.5, 1.0, 8)
    curves = [[slope * step / STEPS[-1] for step in STEPS] for slope in slopes]
    reference = [ramp(20, 0.4)] * 8

    def closed_form(chosen, axis):
        # The mean of lines is a line of the mean slope: it is at 0.4 at the step 0.4 / slope.
        return 0.4 / chosen.mean(axis=axis)

    expected = stats.bootstrap(
        (slopes,), closed_form, n_resamples=20_000, method="percentile", rng=2
    ).confidence_interval
    found = step_ratio(curves, reference, STEPS, of_budget=True)
    assert found.value == pytest.approx(0.4 / slopes.mean())
    assert found.low == pytest.approx(expected.low, rel=0.01)
    assert found.high == pytest.approx(expected.high, rel=0.01)


def test_seeds_are_resampled_in_pairs():
    """A seed that slows both algorithms down equally leaves no doubt about their ratio."""
    batches = [8, 12, 16, 20]
    fast, slow = ([ramp(factor * b) for b in batches] for factor in (1, 2))
    pair = step_ratio(fast[:1] * 4, slow[:1] * 4, STEPS, 0.9, resamples=200)
    both = step_ratio(fast, slow, STEPS, 0.4, resamples=200)
    assert (pair.low, pair.high) == pytest.approx((0.5, 0.5))
    assert (both.low, both.high) == pytest.approx((0.5, 0.5), abs=0.02)


def test_bands_are_scipys_student_intervals():
    rng = np.random.default_rng(3)
    curves = rng.uniform(0, 1, (6, 4))
    low, high = stats.t.interval(0.95, 5, curves.mean(0), stats.sem(curves, axis=0))
    assert np.array(band(curves.tolist())) == pytest.approx(np.stack([low, high], 1))


def test_the_final_level_is_the_mean_of_the_last_evaluations():
    assert final_level([[0.0, *[0.5] * LAST], [1.0, *[0.7] * LAST]]) == pytest.approx(0.6)
    assert mean_curve([[0.0, 1.0], [1.0, 1.0]]) == [0.5, 1.0]


def test_quantiles_are_numpys_and_infinite_beside_infinity():
    values = sorted([3.0, 1.0, 4.0, 1.5, 9.0])
    for share in (0.0, 0.1, 0.5, 0.975):
        assert quantile(values, share) == pytest.approx(np.quantile(values, share))
    assert quantile([1.0, 2.0, math.inf], 0.6) == math.inf
    assert quantile([1.0, 2.0, math.inf], 0.5) == 2.0
