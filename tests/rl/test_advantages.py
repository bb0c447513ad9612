import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstride.rl.advantages import carries_signal, group_advantages, normalise


def test_one_right_answer_in_four_gets_root_three():
    assert group_advantages([1, 0, 0, 0]) == pytest.approx([math.sqrt(3)] + [-1 / math.sqrt(3)] * 3)


@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.5], [None, None], [None, 1.0], []])
def test_a_group_without_spread_carries_no_signal(rewards):
    assert group_advantages(rewards) is None


def test_a_sample_that_could_not_be_judged_is_left_out_of_the_mean():
    assert group_advantages([1.0, None, 0.0]) == [1.0, None, -1.0]


def test_a_reward_that_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="finite"):
        group_advantages([1.0, math.nan])


@given(st.lists(st.floats(-10, 10, width=32), min_size=2, max_size=16))
def test_advantages_match_numpy_and_are_standardised(rewards):
    advantages = group_advantages(rewards)
    if advantages is None:
        assert np.std(rewards) < 1e-7
        return
    assert np.mean(advantages) == pytest.approx(0, abs=1e-6)
    assert advantages == pytest.approx((np.array(rewards) - np.mean(rewards)) / np.std(rewards))


BATCH = [[1.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.0, None]]


def test_the_scale_of_a_batch_divides_every_group_by_one_deviation():
    found = normalise(BATCH, "batch")
    spread = np.std([r for group in BATCH for r in group if r is not None])
    assert found[0] == pytest.approx([0.75 / spread] + [-0.25 / spread] * 3)
    assert found[1][:3] == pytest.approx([1 / 3 / spread, 1 / 3 / spread, -2 / 3 / spread])
    assert found[1][3] is None


def test_without_a_scale_only_the_mean_is_subtracted():
    assert normalise(BATCH, "none")[0] == [0.75, -0.25, -0.25, -0.25]


@pytest.mark.parametrize(("deviation", "expected"), [("population", math.sqrt(3)), ("sample", 1.5)])
def test_the_deviation_is_the_one_that_was_asked_for(deviation, expected):
    assert normalise(BATCH, "group", deviation)[0][0] == pytest.approx(expected)
    ddof = int(deviation == "sample")
    spread = np.std([1, 0, 0, 0, 1, 1, 0], ddof=ddof)
    assert normalise(BATCH, "batch", deviation)[0][0] == pytest.approx(0.75 / spread)


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("rewards", [[1.0, 1.0, 1.0], [0.5], [None, None], [None, 1.0], []])
def test_a_group_without_signal_gets_zero_and_leaves_the_others_alone(scale, rewards):
    assert not carries_signal(rewards)
    found = normalise([[1.0, 0.0], rewards], scale)
    assert found[1] == [None if reward is None else 0.0 for reward in rewards]
    assert found[0][0] == -found[0][1] > 0


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_a_batch_in_which_nothing_was_judged_or_nothing_differs_is_all_zero(scale):
    assert normalise([[1.0, 1.0], [None], []], scale) == [[0.0, 0.0], [None], []]
    assert normalise([], scale) == []


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_batch_with_a_reward_that_is_not_finite_is_refused(value):
    with pytest.raises(ValueError, match="finite"):
        normalise([[1.0, 0.0], [value, None]], "batch")
    with pytest.raises(ValueError, match="finite"):
        carries_signal([value])
