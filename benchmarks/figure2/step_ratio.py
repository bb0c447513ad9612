"""At which step a curve reaches a level, and how sure that is: bootstrap over seeds.

A curve that never reaches the level is censored: its step is infinite. Infinities order after every
number, so quantiles of bootstrap ratios stay defined; an interval's end of infinity says "not
within the budget". Means over seeds are taken of accuracies, never of steps, so that one censored
seed does not spoil a mean.

Suffixes: R resamples, S seeds, E evaluations.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from longstride.evals.intervals import t_quantile

Array = npt.NDArray[np.float64]
Curve = Sequence[float]
"""Accuracy at each evaluation of one seed."""
LAST = 5
"""Evaluations that the final level is the mean of."""
RESAMPLES = 10_000


@dataclass(frozen=True)
class Ratio:
    """Steps of one algorithm over steps of another, with the bootstrap's 95% percentile interval.

    `unreached` is the share of resamples in which the first algorithm never reaches the level.
    """

    value: float
    low: float
    high: float
    unreached: float


def final_level(curves: Sequence[Curve]) -> float:
    """Mean over seeds and over the last `LAST` evaluations."""
    return math.fsum(math.fsum(c[-LAST:]) / len(c[-LAST:]) for c in curves) / len(curves)


def mean_curve(curves: Sequence[Curve]) -> list[float]:
    """Mean over seeds at each evaluation."""
    return [math.fsum(values) / len(values) for values in zip(*curves, strict=True)]


def mean_and_band(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over seeds and its 95% Student t interval."""
    count = len(values)
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
    half = t_quantile(0.975, count - 1) * deviation / math.sqrt(count)
    return mean, mean - half, mean + half


def band(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """95% Student t interval of the mean over seeds at each evaluation."""
    return [mean_and_band(values)[1:] for values in zip(*curves, strict=True)]


def reached_at(curve: Curve, steps: Sequence[float], level: float) -> float:
    """First step at which the curve, linear between evaluations, is at the level; else infinity."""
    axis = np.asarray(steps, dtype=float)
    return float(reached_at_each(np.asarray([curve], dtype=float), axis, np.asarray([level]))[0])


def reached_at_each(curve_RE: Array, steps_E: Array, level_R: Array) -> Array:
    """The same for many curves, each with its own level."""
    above_RE = curve_RE >= level_R[:, None]
    index_R = above_RE.argmax(axis=1)
    row_R = np.arange(len(curve_RE))
    before_R = curve_RE[row_R, np.maximum(index_R - 1, 0)]
    after_R = curve_RE[row_R, index_R]
    rise_R = np.where(index_R > 0, after_R - before_R, 1.0)
    part_R = np.where(index_R > 0, (level_R - before_R) / rise_R, 1.0)
    start_R, stop_R = steps_E[np.maximum(index_R - 1, 0)], steps_E[index_R]
    found_R: Array = np.where(above_RE.any(axis=1), start_R + part_R * (stop_R - start_R), np.inf)
    return found_R


def step_ratio(
    first: Sequence[Curve],
    second: Sequence[Curve],
    steps: Sequence[float],
    share: float = 1.0,
    *,
    of_budget: bool = False,
    resamples: int = RESAMPLES,
    seed: int = 0,
) -> Ratio:
    """Steps at which the mean of `first` reaches `share` of the final level of `second`, relative.

    Seeds are resampled with replacement, the same ones for both, because runs of one seed share
    their prompts. Every resample has its own final level.

    Args:
        first: curves of the algorithm that is timed, one a seed.
        second: curves of the reference, in the same order of seeds.
        steps: optimizer steps of the evaluations.
        share: of the reference's final level.
        of_budget: divide by the last step (as the paper does: the reference needed all of them);
            otherwise by the step at which the reference itself first reaches the level.
        resamples: bootstrap resamples.
        seed: of the bootstrap.
    """
    one, other = np.asarray(first, dtype=float), np.asarray(second, dtype=float)
    axis = np.asarray(steps, dtype=float)
    count = len(one)
    chosen_RS = np.random.default_rng(seed).integers(count, size=(resamples, count))
    # The first row is no resample: every seed once.
    chosen_RS = np.concatenate([np.arange(count)[None], chosen_RS])
    reference_RE = other[chosen_RS].mean(axis=1)
    # Less a hair, so that a flat end counts as reached whatever rounding its mean has.
    level_R = share * reference_RE[:, -LAST:].mean(axis=1) - 1e-12
    own_R = reached_at_each(one[chosen_RS].mean(axis=1), axis, level_R)
    whole_R = np.full_like(own_R, axis[-1])
    if not of_budget:
        # A mean curve is at or above its own final level somewhere, so this is never infinite.
        whole_R = reached_at_each(reference_RE, axis, level_R)
    with np.errstate(invalid="ignore", divide="ignore"):
        ratio_R = np.where(own_R == whole_R, 1.0, own_R / whole_R)
    value, drawn = float(ratio_R[0]), sorted(ratio_R[1:].tolist())
    unreached = sum(math.isinf(number) for number in drawn) / resamples
    return Ratio(value, quantile(drawn, 0.025), quantile(drawn, 0.975), unreached)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of sorted values, linear between them; infinite next to an infinite one."""
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    if low == high or math.isinf(high):
        return high
    return low + (place - math.floor(place)) * (high - low)
