"""Measured facts of RL batches: what the curves show and what the expansion gate decides by."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from longstride.evals.correlation import cluster_correlation
from longstride.training.collecting import Batch
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
    """Curves of one generation batch, over everything that was generated.

    Correlations with the length are over judged samples, of all tasks together and of each family,
    with the ends of their 95% intervals over prompts.
    """
    judged = [rollout for rollout in rollouts if rollout.reward is not None]
    rewards = [rollout.reward for rollout in judged if rollout.reward is not None]
    lengths = [len(rollout.tokens) for rollout in rollouts]
    values: dict[str, float | None] = {
        "rl/window": window,
        "rl/reward/mean": float(np.mean(rewards)) if rewards else None,
        "rl/accuracy": float(np.mean([bool(r.correct) for r in judged])) if judged else None,
        "rl/length/mean": float(np.mean(lengths)),
        "rl/perplexity": perplexity(rollouts),
        "rl/truncated_share": _share(rollouts, "length"),
        "rl/repetition_share": _share(rollouts, "repetition"),
        "rl/unjudged_share": 1.0 - len(judged) / len(rollouts),
        "rl/tokens/generated": float(sum(lengths)),
        **_not_judged(rollouts),
    }
    for percent in (50, 90, 99):
        values[f"rl/length/p{percent}"] = length_percentile(rollouts, percent)
        for name, right in (("solved", True), ("unsolved", False)):
            group = [rollout for rollout in rollouts if rollout.correct is right]
            values[f"rl/length_{name}/p{percent}"] = length_percentile(group, percent)
    families = sorted({rollout.family for rollout in judged} - {""})
    values |= _correlations("rl/correlation/all", judged)
    for family in families if len(families) > 1 else ():
        of_family = [rollout for rollout in judged if rollout.family == family]
        values |= _correlations(f"rl/correlation/{family}", of_family)
    return {name: value for name, value in values.items() if value is not None}


def group_metrics(batch: Batch, trained: Sequence[Rollout]) -> dict[str, float]:
    """What became of the groups and of the tokens of a batch."""
    generated = sum(len(rollout.tokens) for rollout in batch.rollouts)
    used = sum(len(rollout.tokens) for rollout in trained)
    return {
        "rl/groups/kept": batch.kept_groups,
        "rl/groups/dropped": batch.dropped_groups,
        "rl/groups/waves": batch.waves,
        **{f"rl/groups/{reason}": count for reason, count in sorted(batch.dropped_for.items())},
        "rl/tokens/kept": sum(len(rollout.tokens) for rollout in batch.kept),
        "rl/tokens/trained": used,
        "rl/tokens/wasted": generated - used,
    }


def round_facts(first: Sequence[Rollout], last: Sequence[Rollout], window: int) -> RoundFacts:
    """Facts of a round from its first and its last generation batch.

    Answers of families with a window of their own say nothing about the ladder's, and are left out
    as long as there are others.

    Raises:
        ValueError: A batch has no token with a finite log-probability.
    """
    first, last = (_at_window(rollouts, window) for rollouts in (first, last))
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


def _at_window(rollouts: Sequence[Rollout], window: int) -> Sequence[Rollout]:
    return [rollout for rollout in rollouts if rollout.window == window] or rollouts


def _not_judged(rollouts: Sequence[Rollout]) -> dict[str, float]:
    """Samples that were not judged, by reason; none for reasons that did not occur."""
    reasons = Counter(rollout.not_judged for rollout in rollouts if rollout.not_judged is not None)
    return {f"rl/not_judged/{reason}": float(count) for reason, count in sorted(reasons.items())}


def _share(rollouts: Sequence[Rollout], reason: str) -> float:
    return sum(rollout.finish_reason == reason for rollout in rollouts) / len(rollouts)


def _correlations(prefix: str, judged: Sequence[Rollout]) -> dict[str, float]:
    """Correlation of reward, and of being right, with the length."""
    lengths = [float(len(rollout.tokens)) for rollout in judged]
    prompts = [(rollout.batch, rollout.group) for rollout in judged]
    found = {}
    for name, of in (
        ("reward_length", [rollout.reward or 0.0 for rollout in judged]),
        ("accuracy_length", [float(rollout.correct or False) for rollout in judged]),
    ):
        correlation = cluster_correlation(of, lengths, prompts)
        if correlation is not None:
            found[f"{prefix}/{name}"] = correlation.estimate
            found[f"{prefix}/{name}_low"] = correlation.low
            found[f"{prefix}/{name}_high"] = correlation.high
    return found
