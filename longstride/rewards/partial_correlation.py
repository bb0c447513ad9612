"""Partial correlation within prompts, with an interval that holds for alike samples of a prompt."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist

import numpy as np

FEWEST_PROMPTS = 8
"""Below this many prompts with at least two samples nothing is estimated."""
_NO_SPREAD = 1e-12


@dataclass(frozen=True)
class PartialCorrelation:
    """How reward goes with log-length among samples of one prompt at equal verified quality."""

    estimate: float
    """Partial correlation, from -1 to 1."""
    low: float
    """Lower end of the interval."""
    high: float
    """Upper end of the interval."""
    samples: int
    """Samples that it rests on."""
    prompts: int
    """Prompts (clusters) that they belong to."""


def partial_correlation(
    reward_N: np.ndarray,
    log_length_N: np.ndarray,
    quality_N: np.ndarray,
    prompt_N: np.ndarray,
    miss: float = 0.05,
) -> PartialCorrelation | None:
    """Correlate reward with log-length given quality and prompt.

    All three are centred within prompts, so that a prompt's difficulty, which moves all of them,
    is no association; then reward and log-length are replaced by their residuals on quality. With
    u and v the residuals over their root mean squares, r = mean(uv), and the variance of r is the
    sum over prompts of (sum over its samples of uv - r (u^2 + v^2) / 2)^2, over N^2: the delta
    method with whole prompts as units, which assumes neither normality nor equal variances. The
    interval is tanh(atanh(r) -+ t se / (1 - r^2)) with Student's t of prompts - 1 degrees of
    freedom.

    Args:
        reward_N: judged quality.
        log_length_N: natural logarithm of the length.
        quality_N: verified quality.
        prompt_N: integer label of the prompt's group.
        miss: probability that the interval misses, both sides together.

    Returns:
        None with fewer than `FEWEST_PROMPTS` prompts of at least two samples, or where reward or
        length has no spread left.
    """
    _, place_N, count_C = np.unique(prompt_N, return_inverse=True, return_counts=True)
    kept_N = count_C[place_N] > 1
    prompts = int((count_C > 1).sum())
    if prompts < FEWEST_PROMPTS:
        return None
    place_N = np.unique(place_N[kept_N], return_inverse=True)[1]
    columns = (reward_N[kept_N], log_length_N[kept_N], quality_N[kept_N])
    r_N, l_N, q_N = (_centred(column, place_N) for column in columns)
    r_N, l_N = _residual(r_N, q_N), _residual(l_N, q_N)
    if (r_N @ r_N) <= _NO_SPREAD * len(r_N) or (l_N @ l_N) <= _NO_SPREAD * len(l_N):
        return None
    u_N, v_N = r_N / np.sqrt(np.mean(r_N**2)), l_N / np.sqrt(np.mean(l_N**2))
    estimate = float(np.clip(np.mean(u_N * v_N), -1.0, 1.0))
    influence_N = u_N * v_N - estimate * (u_N**2 + v_N**2) / 2
    influence_C = np.bincount(place_N, weights=influence_N)
    # As many clusters as there are short of one, as for a variance of a mean.
    variance = float(influence_C @ influence_C) / len(r_N) ** 2 * prompts / (prompts - 1)
    inside = min(abs(estimate), 1.0 - 1e-9)
    center = math.copysign(math.atanh(inside), estimate)
    half = student_quantile(1.0 - miss / 2, prompts - 1) * math.sqrt(variance) / (1.0 - inside**2)
    return PartialCorrelation(
        estimate, math.tanh(center - half), math.tanh(center + half), len(r_N), prompts
    )


@lru_cache(maxsize=4096)
def student_quantile(probability: float, freedom: int) -> float:
    """Quantile of Student's t above the median, by bisection of its exact distribution function.

    Args:
        probability: from 0.5 up to 1 - 1e-13, beyond which doubles hold too little of the tail.
        freedom: whole degrees of freedom, at least 1.
    """
    if not 0.5 <= probability < 1.0:
        raise ValueError(f"probability={probability} must lie between 0.5 and 1")
    if freedom > 2000:
        # The first terms of Cornish and Fisher.
        z = NormalDist().inv_cdf(probability)
        second = (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
        return z + (z**3 + z) / (4 * freedom) + second
    miss = 2.0 * (1.0 - probability)
    low, high = 0.0, 1.0
    while _two_sided(high, freedom) > miss:
        high *= 2.0
    for _ in range(100):
        middle = (low + high) / 2
        if _two_sided(middle, freedom) > miss:
            low = middle
        else:
            high = middle
    return high


def _two_sided(t: float, freedom: int) -> float:
    """P(|T| > t) in closed form (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    theta = math.atan2(t, math.sqrt(freedom))
    sine, square = math.sin(theta), math.cos(theta) ** 2
    odd = freedom % 2 == 1
    term, total = (math.cos(theta), 0.0) if odd else (1.0, 0.0)
    for k in range(2 + odd, freedom + 1, 2):
        total += term
        term *= square * (k - 1) / k
    if odd:
        return max(0.0, 1.0 - 2.0 / math.pi * (theta + sine * total))
    return max(0.0, 1.0 - sine * total)


def matched_slope(
    reward_N: np.ndarray, log_length_N: np.ndarray, quality_N: np.ndarray, prompt_N: np.ndarray
) -> tuple[float, int] | None:
    """Reward for one unit more of log-length, from matched pairs.

    Pairs are samples of one prompt with equal verified quality. The differences of reward are
    regressed on those of log-length through the origin; each of a set of n alike samples' pairs
    weighs 1/n, so that the set counts as the n - 1 comparisons that it holds. That equals the
    regression with an intercept for every set.

    Returns:
        (slope, pairs that differ in length); None without such pairs.
    """
    keys: dict[tuple[int, float], int] = {}
    set_N = np.array(
        [
            keys.setdefault((int(prompt), float(quality)), len(keys))
            for prompt, quality in zip(prompt_N, quality_N, strict=True)
        ],
        dtype=np.intp,
    )
    if not len(set_N):
        return None
    length_N = _centred(log_length_N, set_N)
    spread = float(length_N @ length_N)
    if spread <= _NO_SPREAD:
        return None
    slope = float(length_N @ _centred(reward_N, set_N)) / spread
    return slope, _differing_pairs(log_length_N, set_N)


def _differing_pairs(log_length_N: np.ndarray, set_N: np.ndarray) -> int:
    pairs = np.bincount(set_N)
    _, equal = np.unique(np.stack([set_N, log_length_N]), axis=1, return_counts=True)
    return int(sum(n * (n - 1) // 2 for n in pairs) - sum(n * (n - 1) // 2 for n in equal))


def _centred(value_N: np.ndarray, place_N: np.ndarray) -> np.ndarray:
    mean_C = np.bincount(place_N, weights=value_N) / np.bincount(place_N)
    centred: np.ndarray = value_N - mean_C[place_N]
    return centred


def _residual(value_N: np.ndarray, quality_N: np.ndarray) -> np.ndarray:
    spread = float(quality_N @ quality_N)
    if spread <= _NO_SPREAD * len(quality_N):
        return value_N
    rest: np.ndarray = value_N - quality_N * (float(quality_N @ value_N) / spread)
    return rest
