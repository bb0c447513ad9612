"""The watch over length bias: an alarm with a bounded false alarm rate, and a recalibration.

For each family (and for all together), every `block` verified samples are a look. A look tests
windows that end now, of `window_blocks` blocks, half of that, a quarter and so on: short ones see a
strong bias soon after it begins, long ones see a weak one. Look j of a family may spend
false_alarm_rate / families * 6 / (pi^2 j^2), in equal parts on its windows; over an endless stream
that sums to the rate, whatever the looks have to do with each other (the union bound).

An alarm fits an adjustment on the window that gave it. A window that alarms early is short, and it
exaggerates: that is why it alarmed. So the fit is refined, on that window and all that came since,
whenever there is twice as much, until the window has its full length.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
from pydantic import Field

from longstride.rewards.partial_correlation import (
    PartialCorrelation,
    matched_slope,
    partial_correlation,
    student_quantile,
)
from schemas.base import Contract
from schemas.judging import LengthWatchConfig

POOLED = "*"
"""Name of the stream of all families. Families without verified samples are adjusted by it."""
_BASEL = 6.0 / math.pi**2


@dataclass(frozen=True)
class Observation:
    """One judged sample."""

    family: str
    """Task family."""
    prompt_id: str
    """The prompt; samples of one prompt within a call of `observe` are compared."""
    reward: float
    """Quality that the judge saw, from 0 to 1, before any adjustment."""
    length: int
    """Length in any one unit."""
    quality: float | None
    """Verified quality, by a rule or a person; None when there is none."""


class Group(Contract):
    """Verified samples of one prompt."""

    reward: list[float]
    """Judged quality, unadjusted."""
    log_length: list[float]
    """Natural logarithm of the length."""
    quality: list[float]
    """Verified quality."""


class Adjustment(Contract):
    """Length-controlled normalisation: value - slope (log length - reference), clipped."""

    slope: float
    """Reward for one unit of log-length."""
    reference: float
    """Log-length that is not adjusted: the mean of the samples it was fitted on."""

    def apply(self, value: float, log_length: float, cap: float) -> float:
        """The adjusted value, from 0 to 1, no more than `cap` away."""
        change = -self.slope * (log_length - self.reference)
        return min(1.0, max(0.0, value + min(cap, max(-cap, change))))


class Estimate(Contract):
    """A partial correlation as it is recorded, with its interval."""

    estimate: float
    """Partial correlation of adjusted reward with log-length."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""
    miss: float
    """Probability that the interval misses."""
    samples: int
    """Samples that it rests on."""
    prompts: int
    """Prompts that they belong to."""


class Recalibration(Contract):
    """One change of an adjustment."""

    reason: Literal["alarm", "refinement"]
    """Whether bias was noticed, or an earlier fit is refined on more samples."""
    family: str
    """Family, or `*`."""
    observed: int
    """Verified samples of the family until then."""
    look: int
    """Number of the look."""
    trigger: Estimate | None
    """The interval that lay beyond the tolerance, at the level that the look had to spend; null
    for a refinement."""
    before: Estimate | None
    """The 95% interval on the window that the fit rests on, with the adjustment as it was."""
    after: Estimate | None
    """The same on the same samples with the new adjustment; null when no spread is left."""
    previous: Adjustment | None
    """The adjustment until then."""
    adjustment: Adjustment | None
    """The adjustment from then on; null when no two alike samples differed in length."""
    pairs: int
    """Matched pairs that it was fitted on."""


class Stream(Contract):
    """What is kept of one family."""

    observed: int = Field(default=0, ge=0)
    """Verified samples so far."""
    looks: int = Field(default=0, ge=0)
    """Looks so far."""
    blocks: list[list[Group]] = Field(default_factory=list)
    """Groups of the last blocks; the last block is filling up."""
    adjustment: Adjustment | None = None
    """What is subtracted."""
    fitted_blocks: int = Field(default=0, ge=0)
    """Blocks that the adjustment was fitted on while it is still to be refined; else 0."""
    latest: Estimate | None = None
    """95% interval of the longest window at the last look."""


class WatchState(Contract):
    """Everything that decisions depend on; a resumed round goes on from it exactly."""

    streams: dict[str, Stream] = Field(default_factory=dict)
    """By family, and `*`."""
    recalibrations: list[Recalibration] = Field(default_factory=list)
    """In order."""
    unverified: int = Field(default=0, ge=0)
    """Samples without verified quality, which cannot be tested."""


class LengthWatch:
    """Watches one judge. Not for several threads.

    `observe` is called once per generation batch with all judged samples, after the rewards of that
    batch are fixed, so that all samples of a batch meet the same adjustment.
    """

    def __init__(
        self, config: LengthWatchConfig, families: Iterable[str], state: WatchState | None = None
    ) -> None:
        """Begin, or go on from a state.

        Args:
            config: the recipe's `rewards.model.length`.
            families: all families that can come; the false alarm rate is divided among them.
            state: what `state` of an earlier watch held.
        """
        self.config = config
        self._families = {*families, POOLED}
        self.state = state.model_copy(deep=True) if state else WatchState()

    def adjust(self, family: str, value: float, length: int) -> float:
        """The value with what length is worth taken out; the same value before any alarm."""
        adjustment = self._adjustment(family)
        if adjustment is None:
            return value
        return adjustment.apply(value, math.log(max(1, length)), self.config.maximum_correction)

    def observe(self, observations: Sequence[Observation]) -> list[Recalibration]:
        """Take in a batch; return the recalibrations that it caused.

        Raises:
            ValueError: a family was not announced.
        """
        if not self.config.enabled:
            return []
        groups: dict[tuple[str, str], list[Observation]] = {}
        for seen in observations:
            if seen.family not in self._families:
                raise ValueError(f"family {seen.family!r} is not among {sorted(self._families)}")
            if seen.quality is None:
                self.state.unverified += 1
            else:
                groups.setdefault((seen.family, seen.prompt_id), []).append(seen)
        found = []
        for (family, _), members in groups.items():
            # A sample alone says nothing about length at a fixed prompt.
            if len(members) < 2:
                continue
            group = _group(members)
            for name in (family, POOLED):
                done = self._take(name, group)
                found += [done] if done else []
        self.state.recalibrations += found
        return found

    def metrics(self) -> dict[str, float]:
        """By metric name: the latest partial correlations with their intervals, and slopes."""
        found = {
            "judge/length_alarms": float(
                sum(done.reason == "alarm" for done in self.state.recalibrations)
            ),
            "judge/length_unverified": float(self.state.unverified),
        }
        for family, stream in sorted(self.state.streams.items()):
            name = "all" if family == POOLED else family
            if stream.latest is not None:
                found[f"judge/length_correlation/{name}"] = stream.latest.estimate
                found[f"judge/length_correlation_low/{name}"] = stream.latest.low
                found[f"judge/length_correlation_high/{name}"] = stream.latest.high
            if stream.adjustment is not None:
                found[f"judge/length_slope/{name}"] = stream.adjustment.slope
        return found

    def _adjustment(self, family: str) -> Adjustment | None:
        own = self.state.streams.get(family)
        if own is not None:
            return own.adjustment
        pooled = self.state.streams.get(POOLED)
        return pooled.adjustment if pooled else None

    def _take(self, name: str, group: Group) -> Recalibration | None:
        stream = self.state.streams.setdefault(name, Stream())
        if not stream.blocks or _samples(stream.blocks[-1]) >= self.config.block:
            stream.blocks.append([])
            del stream.blocks[: -self.config.window_blocks]
        stream.blocks[-1].append(group)
        stream.observed += len(group.reward)
        if _samples(stream.blocks[-1]) < self.config.block:
            return None
        stream.looks += 1
        stream.latest = self._estimate(stream.blocks, stream.adjustment, 0.05)
        triggered = self._look(stream)
        if triggered is not None:
            size, trigger = triggered
            # What came before the bias would only dilute it.
            stream.blocks = stream.blocks[-size:]
            return self._recalibrate(name, stream, trigger)
        if stream.fitted_blocks and len(stream.blocks) >= 2 * stream.fitted_blocks:
            return self._recalibrate(name, stream, None)
        return None

    def _look(self, stream: Stream) -> tuple[int, Estimate] | None:
        """The first window, in blocks, whose interval lies beyond the tolerance."""
        sizes = window_sizes(self.config.window_blocks)
        miss = look_level(self.config, len(self._families), stream.looks) / len(sizes)
        for size in sizes:
            if size > len(stream.blocks):
                break
            found = self._estimate(stream.blocks[-size:], stream.adjustment, miss)
            tolerance = self.config.tolerance
            if found and (found.low > tolerance or found.high < -tolerance):
                return size, found
        return None

    def _estimate(
        self, blocks: Sequence[Sequence[Group]], adjustment: Adjustment | None, miss: float
    ) -> Estimate | None:
        reward_N, length_N, quality_N, prompt_N = _columns(blocks)
        if adjustment is not None:
            cap = self.config.maximum_correction
            values = zip(reward_N, length_N, strict=True)
            reward_N = np.array([adjustment.apply(r, length, cap) for r, length in values])
        found = partial_correlation(reward_N, length_N, quality_N, prompt_N, miss)
        return _recorded(found, miss) if found else None

    def _recalibrate(self, name: str, stream: Stream, trigger: Estimate | None) -> Recalibration:
        """Fit on the stream's blocks, which all belong to one window."""
        columns = _columns(stream.blocks)
        fitted = matched_slope(*columns)
        adjustment, pairs = stream.adjustment, 0
        if fitted is not None:
            adjustment = Adjustment(slope=fitted[0], reference=float(columns[1].mean()))
            pairs = fitted[1]
        done = Recalibration(
            reason="alarm" if trigger else "refinement",
            family=name,
            observed=stream.observed,
            look=stream.looks,
            trigger=trigger,
            before=self._estimate(stream.blocks, stream.adjustment, 0.05),
            after=self._estimate(stream.blocks, adjustment, 0.05),
            previous=stream.adjustment,
            adjustment=adjustment,
            pairs=pairs,
        )
        stream.adjustment = adjustment
        whole = len(stream.blocks) == self.config.window_blocks
        stream.fitted_blocks = 0 if whole else len(stream.blocks)
        if fitted is None:
            # The same samples would give the same alarm at every look.
            stream.blocks, stream.fitted_blocks = [], 0
        return done


def window_sizes(window_blocks: int) -> list[int]:
    """Window lengths that a look tests, in blocks, ascending."""
    return [1 << power for power in range(window_blocks.bit_length())]


def look_level(config: LengthWatchConfig, streams: int, look: int) -> float:
    """Probability of a false alarm that look 1, 2, ... of one of the streams may spend."""
    return config.false_alarm_rate / streams * _BASEL / look**2


def detection_samples(
    config: LengthWatchConfig, streams: int, effect: float, group_size: int, power: float = 0.95
) -> int | None:
    """Verified samples of a family within which a bias that was there from the start is noticed.

    For normal residuals: the fewest blocks j with
    sqrt(m) (atanh(effect) - atanh(tolerance)) >= t + z, where m = j block (1 - 1/group_size) is
    what centring within prompts leaves, t belongs to look j's level with m / (group_size - 1)
    prompts, and z to the power.

    Args:
        config: of the watch.
        streams: families and one.
        effect: partial correlation, beyond the tolerance.
        group_size: samples of each prompt, at least 2.
        power: probability of noticing it by then.

    Returns:
        None when the longest window is too short for it.
    """
    gap = math.atanh(abs(effect)) - math.atanh(config.tolerance)
    sizes = window_sizes(config.window_blocks)
    for blocks in range(1, config.window_blocks + 1):
        size = max(s for s in sizes if s <= blocks)
        left = size * config.block * (1.0 - 1.0 / group_size)
        prompts = int(left / (group_size - 1))
        miss = look_level(config, streams, blocks) / len(sizes)
        if prompts < 2 or gap <= 0:
            continue
        needed = student_quantile(1.0 - miss / 2, prompts - 1) + NormalDist().inv_cdf(power)
        if math.sqrt(left) * gap >= needed:
            return blocks * config.block
    return None


def _group(members: Sequence[Observation]) -> Group:
    return Group(
        reward=[seen.reward for seen in members],
        log_length=[math.log(max(1, seen.length)) for seen in members],
        quality=[float(seen.quality) for seen in members if seen.quality is not None],
    )


def _samples(block: Sequence[Group]) -> int:
    return sum(len(group.reward) for group in block)


def _columns(
    blocks: Sequence[Sequence[Group]],
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Reward, log-length, quality and a label of the group, one entry a sample."""
    groups = [group for block in blocks for group in block]
    labels = np.repeat(np.arange(len(groups)), [len(group.reward) for group in groups])
    reward, length, quality = (
        np.array([value for group in groups for value in getattr(group, name)])
        for name in ("reward", "log_length", "quality")
    )
    return reward, length, quality, labels


def _recorded(found: PartialCorrelation, miss: float) -> Estimate:
    return Estimate(
        estimate=found.estimate, low=found.low, high=found.high, miss=miss,
        samples=found.samples, prompts=found.prompts,
    )  # fmt: skip
