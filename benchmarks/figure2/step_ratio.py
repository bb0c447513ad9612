"""At which step a curve reaches a level, and how sure that is: bootstrap over seeds.

A curve that never reaches the level is censored: its step is infinite. Infinities order after every
number, so quantiles of bootstrap ratios stay defined; an interval's end of infinity says "not
within the budget". Means over seeds are taken of accuracies, never of steps, so that one censored
seed does not spoil a mean.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

from longstride.evals.intervals import t_quantile

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


def band(curves: Sequence[Curve]) -> list[tuple[float, float]]:
    """95% Student t interval of the mean over seeds at each evaluation."""
    count = len(curves)
    quantile = t_quantile(0.975, count - 1)
    found = []
    for values in zip(*curves, strict=True):
        mean = math.fsum(values) / count
        deviation = math.sqrt(math.fsum((v - mean) ** 2 for v in values) / (count - 1))
        half = quantile * deviation / math.sqrt(count)
        found.append((mean - half, mean + half))
    return found


def reached_at(curve: Curve, steps: Sequence[float], level: float) -> float:
    """First step at which the curve, linear between evaluations, is at the level; else infinity."""
    if curve[0] >= level:
        return steps[0]
    for index in range(1, len(curve)):
        if curve[index] >= level:
            before, after = curve[index - 1], curve[index]
            share = (level - before) / (after - before)
            return steps[index - 1] + share * (steps[index] - steps[index - 1])
    return math.inf


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

    def ratio(chosen: Sequence[int]) -> float:
        reference = [second[index] for index in chosen]
        level = share * final_level(reference)
        own = reached_at(mean_curve([first[index] for index in chosen]), steps, level)
        other = reached_at(mean_curve(reference), steps, level)
        if not of_budget and math.isfinite(other):
            return own / other if other else math.nan
        return own / steps[-1]

    rng = random.Random(seed)
    seeds = range(len(first))
    drawn = sorted(ratio(rng.choices(seeds, k=len(first))) for _ in range(resamples))
    unreached = sum(math.isinf(value) for value in drawn) / resamples
    return Ratio(ratio(list(seeds)), quantile(drawn, 0.025), quantile(drawn, 0.975), unreached)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Quantile of sorted values, linear between them; infinite next to an infinite one."""
    place = share * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    if low == high or math.isinf(high):
        return high
    return low + (place - math.floor(place)) * (high - low)
