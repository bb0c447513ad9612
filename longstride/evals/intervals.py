"""Confidence intervals over problems: samples of one problem are one cluster."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from longstride.errors import DataError
from schemas.rows import EvalResult, Interval

_CONDITIONS = (
    "prompt_set_digest", "samples_per_problem", "window", "temperature", "top_p",
    "verifier_version",
)  # fmt: skip


def mean_interval(values_by_problem: Mapping[str, Sequence[float]]) -> Interval:
    """Mean of problem means with its 95% Student t interval; problems weigh the same.

    Clustering by problem is what keeps k samples of one problem from counting as k problems.

    Raises:
        DataError: Fewer than two problems, or a problem without values.
    """
    empty = [problem for problem, values in values_by_problem.items() if not values]
    if empty:
        raise DataError(f"problem {empty[0]} has no values; leave it out of the interval")
    means = [math.fsum(values) / len(values) for values in values_by_problem.values()]
    return _interval(means, sum(len(values) for values in values_by_problem.values()))


def paired_difference(before: EvalResult, after: EvalResult) -> Interval:
    """Mean over problems of (after - before), with its 95% interval.

    Pairing removes the spread between problems, so that it sees far smaller changes than two
    separate intervals do.

    Raises:
        DataError: The results are not comparable; names every condition that differs.
    """
    differing = [
        f"{name} ({getattr(before, name)} against {getattr(after, name)})"
        for name in _CONDITIONS
        if getattr(before, name) != getattr(after, name)
    ]
    if differing:
        raise DataError(
            f"not comparable: {before.label!r} and {after.label!r} differ in "
            f"{', '.join(differing)}; evaluate both under the same conditions"
        )
    common = sorted(before.problem_means.keys() & after.problem_means.keys())
    changes = [after.problem_means[p] - before.problem_means[p] for p in common]
    return _interval(changes, len(common) * after.samples_per_problem)


def _interval(means: Sequence[float], samples: int) -> Interval:
    count = len(means)
    if count < 2:
        raise DataError(
            f"an interval needs at least 2 problems, got {count}; raise "
            "benchmark.problems_per_level"
        )
    mean = math.fsum(means) / count
    variance = math.fsum((value - mean) ** 2 for value in means) / (count - 1)
    half = t_quantile(0.975, count - 1) * math.sqrt(variance / count)
    return Interval(mean=mean, low=mean - half, high=mean + half, problems=count, samples=samples)


def t_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t, by bisection of its distribution function.

    Args:
        probability: between 0.5 and 1, exclusive of 1.
        freedom: degrees of freedom, at least 1.
    """
    low, high = 0.0, 1.0
    while _t_cdf(high, freedom) < probability:
        high *= 2
    for _ in range(200):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        if _t_cdf(middle, freedom) < probability:
            low = middle
        else:
            high = middle
    return high


def _t_cdf(value: float, freedom: int) -> float:
    """P(T <= value) for value >= 0: 1 - I_x(n/2, 1/2) / 2 with x = n / (n + t^2)."""
    x = freedom / (freedom + value * value)
    return 1.0 - 0.5 * _incomplete_beta(freedom / 2, 0.5, x)


def _incomplete_beta(a: float, b: float, x: float) -> float:
    """Regularised incomplete beta function by Lentz's continued fraction (DLMF 8.17.22)."""
    if x <= 0.0 or x >= 1.0:
        return min(1.0, max(0.0, x))
    if x > (a + 1) / (a + b + 2):  # the fraction converges fast only on this side
        return 1.0 - _incomplete_beta(b, a, 1 - x)
    scale = math.exp(
        math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    )
    tiny = 1e-300
    c, d = 1.0, 1.0 / max(1 - (a + b) * x / (a + 1), tiny)
    result = d
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for step in (even, odd):
            d = 1.0 / (1 + step * d or tiny)
            c = 1 + step / c or tiny
            result *= c * d
        if abs(c * d - 1) < 1e-15:
            break
    return scale * result / a
