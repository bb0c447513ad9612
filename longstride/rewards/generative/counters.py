"""What a judge has done since it was opened, as metrics."""

from __future__ import annotations

from collections import Counter, deque
from threading import Lock

import numpy as np

from longstride.rewards.protocol import Judgment, NotJudged

_KEPT_LATENCIES = 10_000


class Counters:
    """Counts of one judge; safe between threads."""

    def __init__(self) -> None:
        """Begin at zero."""
        self._lock = Lock()
        self._counts: Counter[str] = Counter()
        self._seconds: deque[float] = deque(maxlen=_KEPT_LATENCIES)

    def add(self, name: str, amount: int = 1) -> None:
        """Count something."""
        with self._lock:
            self._counts[name] += amount

    def answered(self, seconds: float, tokens: int) -> None:
        """Count an answered request."""
        with self._lock:
            self._seconds.append(seconds)
            self._counts["tokens"] += tokens

    def judged(self, judgment: Judgment) -> None:
        """Count a submission."""
        self.add("submissions")
        if isinstance(judgment, NotJudged):
            self.add(f"not_judged/{judgment.reason}")

    def metrics(self) -> dict[str, float]:
        """By metric name: sums since the judge was opened, shares, and quantiles of latency."""
        with self._lock:
            counts, seconds = Counter(self._counts), list(self._seconds)
        found = {
            f"judge/{name}": float(counts[name])
            for name in ("calls", "cache_hits", "tokens", "reasks", "submissions")
        }
        found |= {f"judge/{name}": float(n) for name, n in counts.items() if "/" in name}
        if seconds:
            p50, p99 = np.percentile(seconds, [50, 99])
            found |= {"judge/latency_p50_s": float(p50), "judge/latency_p99_s": float(p99)}
        for name, part, whole in (
            ("agreement", "agreed", "compared"),
            ("first_position_share", "first_won", "decided_votes"),
        ):
            if counts[whole]:
                found[f"judge/{name}"] = counts[part] / counts[whole]
        return found
