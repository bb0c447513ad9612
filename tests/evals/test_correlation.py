import numpy as np
import pytest
from scipy import stats

from longstride.evals.correlation import cluster_correlation


def samples(clusters, each, slope, seed, within=1.0):
    rng = np.random.default_rng(seed)
    centre = np.repeat(rng.normal(size=clusters), each)
    x = centre + within * rng.normal(size=clusters * each)
    y = slope * x + rng.normal(size=clusters * each)
    return x, y, np.repeat(np.arange(clusters), each).tolist()


def test_the_estimate_is_scipys():
    x, y, clusters = samples(40, 4, 0.5, seed=1)
    found = cluster_correlation(x, y, clusters)
    assert found.estimate == pytest.approx(stats.pearsonr(x, y).statistic, abs=1e-12)
    assert found.low < found.estimate < found.high


def test_with_one_sample_a_cluster_the_interval_is_about_fishers():
    x, y, clusters = samples(300, 1, 0.5, seed=2)
    found = cluster_correlation(x, y, clusters)
    fisher = stats.pearsonr(x, y).confidence_interval(0.95)
    assert (found.low, found.high) == pytest.approx((fisher.low, fisher.high), abs=0.04)


def test_repeating_every_sample_does_not_narrow_the_interval():
    x, y, clusters = samples(60, 1, 0.3, seed=3)
    once = cluster_correlation(x, y, clusters)
    repeated = cluster_correlation(np.repeat(x, 8), np.repeat(y, 8), np.repeat(clusters, 8))
    assert repeated.high - repeated.low == pytest.approx(once.high - once.low, rel=0.01)


def test_the_interval_covers_the_truth_about_as_often_as_it_says():
    truth = 0.5 * np.sqrt(2) / np.sqrt(0.25 * 2 + 1)  # var x = 2, var y = 0.25 x 2 + 1
    hits = 0
    for seed in range(200):
        found = cluster_correlation(*samples(60, 4, 0.5, seed))
        hits += found.low <= truth <= found.high
    assert 175 <= hits <= 199


@pytest.mark.parametrize(
    ("x", "y", "clusters"),
    [([1, 1, 1], [1, 2, 3], [0, 1, 2]), ([1, 2, 3], [1, 1, 1], [0, 1, 2]),
     ([1, 2, 3, 4], [4, 3, 2, 1], [0, 0, 1, 1]), ([], [], [])],
)  # fmt: skip
def test_without_spread_or_clusters_there_is_no_correlation(x, y, clusters):
    assert cluster_correlation(x, y, clusters) is None


def test_the_same_samples_give_the_same_interval():
    once, twice = (cluster_correlation(*samples(20, 3, 0.2, 5)) for _ in range(2))
    assert once == twice
