import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from longstride.errors import DataError
from longstride.evals.intervals import mean_interval, paired_difference, t_quantile
from schemas.rows import EvalResult, Interval

MEANS = st.lists(st.floats(0, 1), min_size=2, max_size=30)


@pytest.mark.parametrize("freedom", [1, 2, 3, 5, 10, 29, 124, 1_000, 100_000])
@pytest.mark.parametrize("probability", [0.6, 0.9, 0.975, 0.995, 0.9999])
def test_the_t_quantile_agrees_with_scipy(freedom, probability):
    expected = scipy.stats.t.ppf(probability, freedom)
    assert t_quantile(probability, freedom) == pytest.approx(expected, rel=1e-9)


@given(means=MEANS)
def test_the_interval_over_problem_means_agrees_with_scipy(means):
    interval = mean_interval({f"p{i}": [mean] for i, mean in enumerate(means)})
    error = scipy.stats.sem(means)
    half = scipy.stats.t.ppf(0.975, len(means) - 1) * error
    assert interval.mean == pytest.approx(np.mean(means), abs=1e-12)
    assert interval.high - interval.low == pytest.approx(2 * half, rel=1e-8, abs=1e-12)


def test_copies_of_a_sample_do_not_narrow_the_interval():
    once = mean_interval({"a": [0.0], "b": [1.0], "c": [1.0]})
    often = mean_interval({"a": [0.0] * 50, "b": [1.0] * 50, "c": [1.0] * 50})
    assert (often.low, often.high) == (once.low, once.high)
    assert (once.problems, once.samples, often.samples) == (3, 3, 150)


@pytest.mark.parametrize("values", [{}, {"a": [1.0]}, {"a": [1.0], "b": []}])
def test_an_interval_without_two_problems_or_with_an_empty_one_is_refused(values):
    with pytest.raises(DataError):
        mean_interval(values)


def result(means, **changes) -> EvalResult:
    whole = Interval(mean=0, low=0, high=0, problems=len(means), samples=4 * len(means))
    values = {
        "label": "x", "checkpoint_digest": "d", "samples_per_problem": 4, "temperature": 1.0,
        "top_p": 0.95, "window": 40, "prompt_set_digest": "s", "verifier_version": "v",
        "average": whole, "by_family": {}, "by_level": {}, "length_p50": 1, "length_p99": 1,
        "truncated_share": 0, "unjudged_share": 0, "problem_means": means,
    }  # fmt: skip
    return EvalResult.model_validate({**values, **changes})


@given(pairs=st.lists(st.tuples(st.floats(0, 1), st.floats(0, 1)), min_size=2, max_size=30))
def test_the_paired_difference_agrees_with_scipys_paired_t_test(pairs):
    before = result({f"p{i}": b for i, (b, _) in enumerate(pairs)})
    after = result({f"p{i}": a for i, (_, a) in enumerate(pairs)})
    interval = paired_difference(before, after)
    changes = [a - b for b, a in pairs]
    half = scipy.stats.t.ppf(0.975, len(pairs) - 1) * scipy.stats.sem(changes)
    assert interval.low == pytest.approx(np.mean(changes) - half, abs=1e-9)
    assert interval.high == pytest.approx(np.mean(changes) + half, abs=1e-9)


def test_pairing_sees_a_small_gain_that_separate_intervals_do_not():
    before = {f"p{i}": i / 20 for i in range(20)}
    after = {name: mean + 0.02 + 0.001 * (i % 3) for i, (name, mean) in enumerate(before.items())}
    assert paired_difference(result(before), result(after)).low > 0
    separate = [mean_interval({p: [m] for p, m in means.items()}) for means in (before, after)]
    assert separate[0].high > separate[1].low


@pytest.mark.parametrize(
    "change",
    [
        {"prompt_set_digest": "other"},
        {"window": 48},
        {"temperature": 0.6},
        {"top_p": 1.0},
        {"verifier_version": "v2"},
        {"samples_per_problem": 8},
    ],
)
def test_results_under_different_conditions_are_not_comparable(change):
    means = {"a": 0.0, "b": 1.0}
    name, value = next(iter(change.items()))
    with pytest.raises(DataError, match=rf"not comparable.* {name} \(.* against {value}\)"):
        paired_difference(result(means), result(means, **change))
