"""Normalised advantages with every degenerate case defined.

A reward of None is a sample that could not be judged: it takes no part in any statistic and has
no advantage.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

Rewards = Sequence[float | None]
Advantages = list[float | None]
Scale = Literal["group", "batch", "none"]
Deviation = Literal["population", "sample"]

SPREAD_FLOOR = 1e-8
"""Rewards closer together than this carry no signal: the group is dropped, not divided by ~0."""


def carries_signal(rewards: Rewards) -> bool:
    """Whether a prompt's samples can teach anything: two judged ones at least, with a spread.

    Raises:
        ValueError: A reward is not finite.
    """
    judged = _judged(rewards)
    return len(judged) > 1 and _spread(judged, "population") >= SPREAD_FLOOR


def group_advantages(
    rewards: Rewards, deviation: Deviation = "population"
) -> list[float | None] | None:
    """Advantage (R - mean) / std of each judged sample of one prompt (GRPO; report eq. 1).

    Returns:
        One advantage a sample, or None when the group carries no signal.

    Raises:
        ValueError: A reward is not finite.
    """
    if not carries_signal(rewards):
        return None
    return normalise([rewards], "group", deviation)[0]


def normalise(
    groups: Sequence[Rewards], scale: Scale = "group", deviation: Deviation = "population"
) -> list[Advantages]:
    """Advantages of all groups of a batch: the group's mean subtracted, then divided by a spread.

    A group that carries no signal gets the advantage 0 for its judged samples.

    Args:
        groups: rewards of each prompt's samples.
        scale: `group` divides by the standard deviation of the group, `batch` by that of all
            judged rewards of the batch (ScaleRL), `none` by nothing.
        deviation: with the denominator n, or n - 1.

    Raises:
        ValueError: A reward is not finite.
    """
    batch = _spread([reward for rewards in groups for reward in _judged(rewards)], deviation)
    found: list[Advantages] = []
    for rewards in groups:
        judged = _judged(rewards)
        if not carries_signal(rewards):
            found.append([None if reward is None else 0.0 for reward in rewards])
            continue
        mean = math.fsum(judged) / len(judged)
        divisor = {"group": _spread(judged, deviation), "batch": batch, "none": 1.0}[scale]
        found.append([None if reward is None else (reward - mean) / divisor for reward in rewards])
    return found


def _judged(rewards: Rewards) -> list[float]:
    judged = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in judged):
        raise ValueError(f"rewards must be finite or None, got {list(rewards)}; fix the verifier")
    return judged


def _spread(values: Sequence[float], deviation: Deviation) -> float:
    """Standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    mean = math.fsum(values) / len(values)
    degrees = len(values) - (deviation == "sample")
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / degrees)
