"""Axes: domains, ticks at round numbers, logarithms, and thinning that keeps the extremes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

Point = tuple[float, float]
_LEAST_LOG = 1e-100


@dataclass(frozen=True)
class Scale:
    """Maps data in `low..high` to pixels `start..end`."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    def __call__(self, value: float) -> float:
        """Pixel of a value; values that a logarithm cannot show sit on the axis."""
        low, high = self.low, self.high
        if self.log:
            low, high, value = math.log(low), math.log(high), math.log(max(value, self.low))
        span = high - low
        share = (value / span - low / span) if span else 0.5
        return self.start + share * (self.end - self.start)

    def ticks(self, count: int = 5) -> list[float]:
        """Round numbers inside the domain, about `count` of them."""
        return _log_ticks(self.low, self.high) if self.log else linear_ticks(
            self.low, self.high, count
        )  # fmt: skip


def linear_ticks(low: float, high: float, count: int = 5) -> list[float]:
    """Multiples of 1, 2 or 5 times a power of ten inside `low..high`."""
    span = high - low
    if not 1e-290 < span < math.inf or span < 1e-12 * max(abs(low), abs(high)):
        return [low]
    raw = span / max(1, count)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next((m * power for m in (1, 2, 5, 10) if m * power >= raw), 10 * power)
    first = math.ceil(low / step - 1e-9)
    last = math.floor(high / step + 1e-9)
    ticks = [round(k * step, 12 - math.floor(math.log10(step))) for k in range(first, last + 1)]
    return ticks or [low]


def _log_ticks(low: float, high: float) -> list[float]:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    mantissas = (1, 2, 5) if last - first <= 2 else (1,)
    stride = max(1, (last - first) // 5)
    ticks = [m * 10.0**e for e in range(first, last + 1, stride) for m in mantissas]
    inside = [t for t in ticks if low * (1 - 1e-9) <= t <= high * (1 + 1e-9)]
    return inside or [low]


def wants_log(values: Sequence[float]) -> bool:
    """Whether a logarithm helps: all positive, and the spread exceeds a factor of 30.

    Values so extreme that a padded limit would overflow or vanish are drawn on a line.
    """
    if not values or min(values) < _LEAST_LOG or max(values) > 1 / _LEAST_LOG:
        return False
    return max(values) / min(values) > 30


def domain(values: Sequence[float], *, log: bool, zero: bool = False) -> tuple[float, float]:
    """Limits a little wider than the data, never empty."""
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    if log:
        if low == high:
            return low / 2, high * 2
        pad = (high / low) ** 0.05
        return low / pad, high * pad
    if zero:
        low, high = min(low, 0.0), max(high, 0.0)
    # A spread below a millionth is rounding: show a flat line, not axis labels that look alike.
    if high - low <= 1e-6 * max(abs(low), abs(high), 1e-12):
        pad = abs(high) * 0.1 or 1.0
        return low - (0.0 if zero and low == 0 else pad), high + pad
    pad = (high - low) * 0.06
    return (low if zero and low == 0 else low - pad), (high if zero and high == 0 else high + pad)


def thin(points: Sequence[Point], limit: int = 500) -> list[Point]:
    """At most `limit` points: the least and greatest value of each bucket, and both ends."""
    if len(points) <= limit:
        return list(points)
    buckets = max(1, (limit - 2) // 2)
    kept = {0, len(points) - 1}
    for bucket in range(buckets):
        start, end = bucket * len(points) // buckets, (bucket + 1) * len(points) // buckets
        indices = range(start, end)
        kept.add(min(indices, key=lambda i: points[i][1]))
        kept.add(max(indices, key=lambda i: points[i][1]))
    return [points[i] for i in sorted(kept)]
