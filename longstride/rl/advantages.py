"""Group-normalised advantages with every degenerate case defined."""

from __future__ import annotations

import math
from collections.abc import Sequence

SPREAD_FLOOR = 1e-8
"""Rewards closer together than this carry no signal: the group is dropped, not divided by ~0."""


def group_advantages(rewards: Sequence[float | None]) -> list[float | None] | None:
    """Advantage (R - mean) / std of each judged sample of one prompt (GRPO; report eq. 1).

    The standard deviation is the population's, over judged samples. A sample that could not be
    judged has the reward None, takes no part in the mean and gets the advantage None.

    Returns:
        One advantage a sample, or None when the group carries no signal: fewer than two judged
        samples, or no spread among their rewards.

    Raises:
        ValueError: A reward is not finite.
    """
    judged = [reward for reward in rewards if reward is not None]
    if not all(math.isfinite(reward) for reward in judged):
        raise ValueError(f"rewards must be finite or None, got {list(rewards)}; fix the verifier")
    if len(judged) < 2:
        return None
    mean = math.fsum(judged) / len(judged)
    deviation = math.sqrt(math.fsum((reward - mean) ** 2 for reward in judged) / len(judged))
    if deviation < SPREAD_FLOOR:
        return None
    return [None if reward is None else (reward - mean) / deviation for reward in rewards]
