import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longstride.rewards.generative.shaping import RunningMoments, Shaper
from schemas.judging import Moments, ShapingConfig

VALUES = st.lists(st.floats(0, 1), min_size=2, max_size=40)


def shaped(values, family="f", **settings):
    return Shaper(ShapingConfig(**settings)).shape([family] * len(values), values)


def test_nothing_is_done_unless_the_recipe_says_so():
    assert shaped([0.0, 0.3, 1.0]) == [0.0, 0.3, 1.0]


def test_values_are_clipped_and_then_weighed():
    assert shaped([0.0, 0.5, 1.0], low=0.2, high=0.8, weights={"f": 0.5}) == [0.1, 0.25, 0.4]
    assert shaped([1.0], family="other", weights={"f": 0.5}) == [1.0]


def test_given_moments_put_the_mean_in_the_middle_and_clip_outliers():
    moments = {"f": Moments(mean=0.6, deviation=0.1)}
    found = shaped([0.6, 0.7, 0.0, 1.0], normalise="fixed", moments=moments, deviations=2.0)
    assert found == pytest.approx([0.5, 0.75, 0.0, 1.0])


@given(VALUES)
def test_running_moments_equal_those_of_numpy(values):
    moments = RunningMoments()
    for value in values:
        moments = moments.including(value)
    assert moments.mean == pytest.approx(np.mean(values))
    assert moments.deviation == pytest.approx(np.std(values, ddof=1), abs=1e-9)


@given(VALUES, VALUES)
def test_shaping_never_changes_who_of_a_batch_is_ahead(earlier, values):
    shaper = Shaper(ShapingConfig(normalise="running", warmup=2, weights={"f": 0.7}))
    shaper.shape(["f"] * len(earlier), earlier)
    found = shaper.shape(["f"] * len(values), values)
    ordered = [value for _, value in sorted(zip(values, found, strict=True))]
    assert ordered == sorted(ordered)
    assert all(0.0 <= value <= 1.0 for value in found)


def test_a_batch_is_shaped_by_the_batches_before_it():
    shaper = Shaper(ShapingConfig(normalise="running", warmup=4))
    assert shaper.shape(["f"] * 4, [0.2, 0.4, 0.6, 0.8]) == [0.2, 0.4, 0.6, 0.8]
    assert shaper.shape(["f", "g"], [0.5, 0.9]) == pytest.approx([0.5, 0.9])
    assert shaper.shape(["f"], [0.9])[0] > 0.5


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"low": 0.8, "high": 0.8}, "low=0.8 is not below high=0.8"),
        ({"normalise": "fixed"}, "normalise=fixed with moments of 0 families"),
        ({"moments": {"f": {"mean": 0.5, "deviation": 1}}}, "normalise=none with moments of 1"),
        ({"weights": {"f": 1.5}}, "outside 0 to 1"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, message):
    with pytest.raises(ValidationError, match=message):
        ShapingConfig(**settings)
