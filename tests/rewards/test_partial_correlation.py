"""The partial correlation, its interval and the matched pairs, beside closed forms and scipy."""

import numpy as np
import pytest
import scipy.stats

from longstride.rewards.partial_correlation import (
    matched_slope,
    partial_correlation,
    student_quantile,
)


def sample(seed, prompts=40, group=8, effect=0.0, noise=0.2):
    """Reward, log-length, quality and prompt; difficulty moves the first three."""
    rng = np.random.default_rng(seed)
    prompt = np.repeat(np.arange(prompts), group)
    difficulty = rng.normal(size=prompts)[prompt]
    quality = (rng.random(prompts * group) < 1 / (1 + np.exp(difficulty))).astype(float)
    own = 0.4 * rng.normal(size=prompts * group)
    length = 6 + 0.5 * difficulty - 0.3 * quality + own
    reward = 0.5 * quality - 0.1 * difficulty + effect * own + noise * rng.normal(size=len(prompt))
    return reward, length, quality, prompt


@pytest.mark.parametrize("freedom", [1, 2, 3, 7, 8, 31, 100, 1999, 2001, 50_000])
@pytest.mark.parametrize("tail", [0.4, 0.025, 1e-3, 1e-5, 1e-8])
def test_student_quantiles_equal_scipys(freedom, tail):
    wanted = scipy.stats.t.ppf(1 - tail, freedom)
    assert student_quantile(1 - tail, freedom) == pytest.approx(wanted, rel=1e-5)


def test_the_median_is_zero_and_nonsense_is_refused():
    assert student_quantile(0.5, 5) == pytest.approx(0.0, abs=1e-12)
    with pytest.raises(ValueError, match="probability=1"):
        student_quantile(1.0, 5)


def test_the_estimate_equals_the_correlation_of_regression_residuals():
    reward, length, quality, prompt = sample(1, effect=0.3)
    design = np.column_stack([quality, prompt[:, None] == np.unique(prompt)]).astype(float)
    residuals = [v - design @ np.linalg.lstsq(design, v, rcond=None)[0] for v in (reward, length)]
    wanted = scipy.stats.pearsonr(*residuals).statistic
    found = partial_correlation(reward, length, quality, prompt)
    assert found.estimate == pytest.approx(wanted, abs=1e-10)
    assert found.low < found.estimate < found.high
    assert (found.samples, found.prompts) == (320, 40)


def test_difficulty_that_moves_reward_and_length_is_no_partial_correlation():
    reward, length, quality, prompt = sample(2, prompts=200)
    assert scipy.stats.pearsonr(reward, length).statistic < -0.3
    found = partial_correlation(reward, length, quality, prompt)
    assert found.low < 0.0 < found.high


def test_for_independent_normal_samples_the_interval_is_fishers():
    # Groups of two: centring leaves one contrast a prompt, so m = prompts, less one for quality.
    rng = np.random.default_rng(3)
    widths = []
    for _ in range(20):
        contrast = rng.multivariate_normal([0, 0], [[1, 0.3], [0.3, 1]], size=400)
        values = np.repeat(contrast, 2, axis=0) * np.tile([[0.5], [-0.5]], (400, 1))
        quality = np.tile([0.0, 1.0, 1.0, 0.0], 200)
        found = partial_correlation(values[:, 0], values[:, 1], quality, np.repeat(range(400), 2))
        widths.append(np.arctanh(found.high) - np.arctanh(found.low))
    assert np.mean(widths) == pytest.approx(2 * 1.96 / np.sqrt(400 - 3 - 1), rel=0.05)


@pytest.mark.parametrize("effect", [0.0, 0.3])
def test_the_interval_covers_as_often_as_it_says(effect):
    # The residuals' correlation: covariance effect * 0.16, variances 0.16 effect^2 + 0.04 and 0.16.
    true = effect * 0.4 / np.sqrt((effect * 0.4) ** 2 + 0.04)
    found = [partial_correlation(*sample(seed, effect=effect), miss=0.1) for seed in range(400)]
    misses = sum(not f.low <= true <= f.high for f in found)
    assert scipy.stats.binomtest(misses, 400, 0.1).pvalue > 0.01


def test_unequal_variances_do_not_narrow_the_interval():
    def heavy(seed):
        reward, length, quality, prompt = sample(seed, prompts=60)
        rng = np.random.default_rng(seed + 10_000)
        # Longer answers are judged less surely, which breaks Fisher's formula and not ours.
        off = np.abs(length - 6)
        return reward + off**2 * rng.normal(size=len(reward)), length, quality, prompt

    found = [partial_correlation(*heavy(seed), miss=0.1) for seed in range(300)]
    assert sum(not f.low <= 0.0 <= f.high for f in found) / 300 < 0.15
    fisher = 1.645 / np.sqrt(60 * 7 - 4)
    assert sum(abs(np.arctanh(f.estimate)) > fisher for f in found) / 300 > 0.2


def test_too_few_prompts_lone_samples_or_no_spread_give_nothing():
    reward, length, quality, prompt = sample(4, prompts=8)
    assert partial_correlation(reward, length, quality, prompt) is not None
    few = prompt < 7
    assert partial_correlation(*(v[few] for v in (reward, length, quality, prompt))) is None
    assert partial_correlation(reward, length, quality, np.arange(len(prompt))) is None
    assert partial_correlation(np.ones_like(reward), length, quality, prompt) is None
    assert partial_correlation(quality * 0.3, length, quality, prompt) is None
    assert partial_correlation(reward, length, np.ones_like(reward), prompt) is not None


def test_a_perfect_correlation_has_an_interval_too():
    _, length, quality, prompt = sample(5)
    found = partial_correlation(length * 2 + quality, length, quality, prompt)
    assert found.estimate == pytest.approx(1.0)
    assert 0.9 < found.low <= found.high <= 1.0


def test_the_matched_slope_equals_a_regression_on_all_pairs():
    reward, length, quality, prompt = sample(6, effect=0.3)
    over, under, pairs = 0.0, 0.0, 0
    for p in np.unique(prompt):
        for q in (0.0, 1.0):
            members = np.flatnonzero((prompt == p) & (quality == q))
            for i in members:
                for j in members[members > i]:
                    over += (reward[i] - reward[j]) * (length[i] - length[j]) / len(members)
                    under += (length[i] - length[j]) ** 2 / len(members)
                    pairs += 1
    slope, found = matched_slope(reward, length, quality, prompt)
    assert slope == pytest.approx(over / under)
    assert found == pairs
    assert slope == pytest.approx(0.3, abs=0.1)


def test_pairs_of_equal_length_are_no_comparison():
    values = [np.array(v, dtype=float) for v in ([0, 1, 0, 1], [2, 2, 2, 3], [1, 1, 1, 1])]
    slope, pairs = matched_slope(*values, np.array([0, 0, 1, 1]))
    assert (slope, pairs) == (1.0, 1)
    assert matched_slope(values[0], np.ones(4), values[2], np.array([0, 0, 1, 1])) is None
    assert matched_slope(*(v[:0] for v in values), np.array([], dtype=int)) is None
