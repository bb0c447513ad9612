"""Learning-rate schedules as functions of the step."""

from __future__ import annotations

import math
from collections.abc import Callable

Schedule = Callable[[int], float]


def constant_then_decay(
    peak: float, final: float, steps: int, constant_fraction: float, warmup: int
) -> Schedule:
    """Warm up, hold the peak, then decay exponentially to `final` at the last step."""
    held = round(steps * constant_fraction)
    if constant_fraction < 1.0:
        # However few steps there are, the last one has the final rate.
        held = min(held, steps - 2)
    decay_from = max(warmup, held)

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        if step <= decay_from:
            return peak
        progress = (step - decay_from) / max(1, steps - 1 - decay_from)
        return float(peak * (final / peak) ** min(1.0, progress))

    return rate


def cosine(peak: float, final: float, steps: int, warmup: int) -> Schedule:
    """Warm up, then a cosine from `peak` to `final` at the last step."""

    def rate(step: int) -> float:
        if step < warmup:
            return peak * (step + 1) / warmup
        progress = (step - warmup) / max(1, steps - 1 - warmup)
        return final + (peak - final) * 0.5 * (1.0 + math.cos(math.pi * min(1.0, progress)))

    return rate


def constant(peak: float, warmup: int = 0) -> Schedule:
    """Warm up, then always the same rate."""
    return lambda step: peak * min(1.0, (step + 1) / max(1, warmup))
