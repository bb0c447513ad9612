"""Measured facts of RL batches: what the curves show and what the expansion gate decides by."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from schemas.ladder import RoundFacts
from schemas.rows import Rollout

Position = Callable[[int], bool]


def perplexity(rollouts: Sequence[Rollout], position: Position = lambda _: True) -> float | None:
    """Return exp of the mean negative log-probability of the generated tokens at positions."""
    values = [
        value
        for rollout in rollouts
        for index, value in enumerate(rollout.logprobs)
        if value is not None and position(index)
    ]
    return math.exp(-math.fsum(values) / len(values)) if values else None


def length_percentile(rollouts: Sequence[Rollout], percent: float) -> float | None:
    """Percentile of output length in tokens (linear interpolation)."""
    if not rollouts:
        return None
    return float(np.percentile([len(rollout.tokens) for rollout in rollouts], percent))


def batch_metrics(rollouts: Sequence[Rollout], window: int) -> dict[str, float]:
    """Curves of one generation batch, over everything that was generated."""
    judged = [rollout for rollout in rollouts if rollout.reward is not None]
    rewards = [rollout.reward for rollout in judged if rollout.reward is not None]
    lengths = [len(rollout.tokens) for rollout in rollouts]
    values: dict[str, float | None] = {
        "rl/window": window,
        "rl/reward/mean": float(np.mean(rewards)) if rewards else None,
        "rl/accuracy": float(np.mean([bool(r.correct) for r in judged])) if judged else None,
        "rl/length/mean": float(np.mean(lengths)),
        "rl/length/p50": length_percentile(rollouts, 50),
        "rl/length/p99": length_percentile(rollouts, 99),
        "rl/perplexity": perplexity(rollouts),
        "rl/truncated_share": _share(rollouts, "length"),
        "rl/repetition_share": _share(rollouts, "repetition"),
        "rl/unjudged_share": 1.0 - len(judged) / len(rollouts),
        "rl/reward_length_correlation": _reward_length_correlation(judged),
        "rl/tokens/generated": float(sum(lengths)),
    }
    return {name: value for name, value in values.items() if value is not None}


def round_facts(first: Sequence[Rollout], last: Sequence[Rollout], window: int) -> RoundFacts:
    """Facts of a round from its first and its last generation batch.

    Raises:
        ValueError: A batch has no token with a finite log-probability.
    """
    whole_first, whole_last = perplexity(first), perplexity(last)
    if whole_first is None or whole_last is None:
        raise ValueError("a batch has no token with a finite log-probability")
    head = perplexity(last, lambda index: index < window / 2)
    tail = perplexity(last, lambda index: index >= 3 * window / 4)
    right = [rollout for rollout in last if rollout.correct is True]
    wrong = [rollout for rollout in last if rollout.correct is False]
    rewards = [rollout.reward for rollout in last if rollout.reward is not None]
    return RoundFacts(
        window=window,
        perplexity_first=whole_first,
        perplexity_last=whole_last,
        perplexity_head=head if head is not None else whole_last,
        perplexity_tail=tail if tail is not None else whole_last,
        length_p50=length_percentile(last, 50) or 0.0,
        length_p99=length_percentile(last, 99) or 0.0,
        length_p99_correct=length_percentile(right, 99),
        length_p99_wrong=length_percentile(wrong, 99),
        truncated_share=_share(last, "length"),
        repetition_share=_share(last, "repetition"),
        reward_mean=float(np.mean(rewards)) if rewards else 0.0,
        samples=len(last),
    )


def _share(rollouts: Sequence[Rollout], reason: str) -> float:
    return sum(rollout.finish_reason == reason for rollout in rollouts) / len(rollouts)


def _reward_length_correlation(judged: Sequence[Rollout]) -> float | None:
    """Pearson correlation of reward and length; None without spread."""
    if len(judged) < 2:
        return None
    rewards = np.array([rollout.reward for rollout in judged], dtype=float)
    lengths = np.array([len(rollout.tokens) for rollout in judged], dtype=float)
    if rewards.std() == 0 or lengths.std() == 0:
        return None
    return float(np.corrcoef(rewards, lengths)[0, 1])
