"""How well sampler and trainer agree on the probability of the sampled tokens, in one pass."""

from __future__ import annotations

import math
from collections import defaultdict
from typing import Final

import numpy as np
from numpy.typing import NDArray

from longstride.quality.frame import RowFacts
from schemas.rows import Rollout

Floats = NDArray[np.float64]

_HELD: Final = 1 << 16


class Agreement:
    """Running moments of sampler and trainer probabilities.

    Correlation of probabilities (M1 reports 0.9 before and 0.99 after its fp32 head), and the mean
    of r - 1 - log r with r = trainer / sampler, the k3 estimate of KL(sampler || trainer).
    """

    def __init__(self) -> None:
        """Start without tokens."""
        self._sampler: list[float] = []
        self._trainer: list[float] = []
        self._batches: list[int] = []
        self._count = 0
        self._means = np.zeros(2)
        self._moments = np.zeros((2, 2))
        self._divergence: defaultdict[int, list[float]] = defaultdict(lambda: [0.0, 0.0])
        self._largest = 0.0
        self._apart = False

    def add(self, rollout: Rollout) -> None:
        """Take in the tokens of a rollout that both sides know."""
        count = min(len(rollout.logprobs), len(rollout.trainer_logprobs))
        pairs = zip(rollout.logprobs[:count], rollout.trainer_logprobs, strict=False)
        known = [(sampled, trained) for sampled, trained in pairs if sampled is not None]
        self._sampler += [sampled for sampled, _ in known]
        self._trainer += [trained for _, trained in known]
        self._batches += [rollout.batch] * len(known)
        if len(self._sampler) >= _HELD:
            self._merge()

    def facts(self) -> RowFacts:
        """Correlation, divergence and largest difference; None where no token is known to both."""
        self._merge()
        if not self._count:
            return dict.fromkeys(
                ("probability_correlation", "mismatch_kl", "mismatch_largest", "mismatch_growth")
            )
        variances = float(self._moments[0, 0] * self._moments[1, 1])
        if variances > 0:
            correlation = float(self._moments[0, 1]) / math.sqrt(variances)
        else:
            # Without spread: 1 for equal series and 0 for others.
            correlation = 0.0 if self._apart else 1.0
        total = math.fsum(kl for kl, _ in self._divergence.values())
        means = [self._divergence[batch][0] / self._divergence[batch][1]
                 for batch in sorted(self._divergence)]  # fmt: skip
        growth = means[-1] - means[0] if len(means) > 1 else None
        return {
            "probability_correlation": correlation,
            "mismatch_kl": total / self._count,
            "mismatch_largest": self._largest,
            "mismatch_growth": growth,
        }

    def _merge(self) -> None:
        """Merge the moments of the tokens held with those before (Chan et al.)."""
        if not self._sampler:
            return
        sampler, trainer = np.array(self._sampler), np.array(self._trainer)
        batches = np.array(self._batches)
        pair: Floats = np.exp(np.stack([sampler, trainer]))
        count, means = pair.shape[1], pair.mean(axis=1)
        centred = pair - means[:, None]
        shift = means - self._means
        total = self._count + count
        self._moments += centred @ centred.T + np.outer(shift, shift) * (
            self._count * count / total
        )
        self._means += shift * (count / total)
        self._count = total
        log_ratio = np.clip(trainer - sampler, -50.0, 50.0)
        divergence = np.expm1(log_ratio) - log_ratio
        for batch in np.unique(batches).tolist():
            here = batches == batch
            self._divergence[batch][0] += float(divergence[here].sum())
            self._divergence[batch][1] += int(here.sum())
        difference = np.abs(pair[0] - pair[1])
        self._largest = max(self._largest, float(difference.max()))
        self._apart = self._apart or not np.allclose(pair[0], pair[1], atol=1e-6)
        self._sampler, self._trainer, self._batches = [], [], []
