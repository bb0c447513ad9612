"""From judged quality to the value that is learnt from: normalise, clip, weigh."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import Field

from schemas.base import Contract
from schemas.judging import ShapingConfig

_SMALLEST_DEVIATION = 0.05
"""Below this a family's judged quality has no spread worth magnifying."""


class RunningMoments(Contract):
    """Welford's sums of one family."""

    count: int = Field(default=0, ge=0)
    """Judged answers."""
    mean: float = 0.0
    """Their mean."""
    squares: float = Field(default=0.0, ge=0.0)
    """Sum of squared deviations from the mean."""

    def including(self, value: float) -> RunningMoments:
        """The sums with one more value."""
        count = self.count + 1
        change = value - self.mean
        mean = self.mean + change / count
        squares = self.squares + change * (value - mean)
        return RunningMoments(count=count, mean=mean, squares=squares)

    @property
    def deviation(self) -> float:
        """Sample standard deviation; 0 below two values."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


class Shaper:
    """Shapes batches of values. All values of a batch meet the moments of earlier batches.

    So one increasing map holds for a family in a batch: shaping never changes who of a group is
    ahead (clipping may make neighbours equal), and the order of judging does not matter.
    """

    def __init__(
        self, config: ShapingConfig, state: Mapping[str, RunningMoments] | None = None
    ) -> None:
        """Go on from a state, or begin without one."""
        self._config = config
        self.moments: dict[str, RunningMoments] = dict(state or {})

    def shape(self, families: Sequence[str], values: Sequence[float]) -> list[float]:
        """The shaped values of a batch, from 0 to 1, before it enters the running moments."""
        shaped = [self._one(f, v) for f, v in zip(families, values, strict=True)]
        if self._config.normalise == "running":
            for family, value in zip(families, values, strict=True):
                self.moments[family] = self.moments.get(family, RunningMoments()).including(value)
        return shaped

    def _one(self, family: str, value: float) -> float:
        config = self._config
        moments = self._moments(family)
        if moments is not None:
            mean, deviation = moments
            z = (value - mean) / deviation
            z = min(config.deviations, max(-config.deviations, z))
            value = 0.5 + z / (2.0 * config.deviations)
        clipped = min(config.high, max(config.low, value))
        return clipped * config.weights.get(family, 1.0)

    def _moments(self, family: str) -> tuple[float, float] | None:
        """Mean and deviation, where they are known."""
        if self._config.normalise == "fixed":
            given = self._config.moments.get(family)
            return (given.mean, given.deviation) if given else None
        known = self.moments.get(family)
        if known is None or known.count < self._config.warmup:
            return None
        return known.mean, max(_SMALLEST_DEVIATION, known.deviation)
