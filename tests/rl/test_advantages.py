import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstride.rl.advantages import group_advantages


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
