"""E5: the rollouts of one RL round before the next."""

from __future__ import annotations

import json
import math
import zlib
from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from longstride.quality.frame import Measured, RowFacts, Tally, require_rows
from longstride.quality.subject import Subject
from longstride.store.files import read_jsonl, read_text
from schemas.recipe import Recipe
from schemas.rows import Rollout

Floats = NDArray[np.float64]

_TAIL_CHARACTERS: Final = 10_000
_COMPRESSED: Final = 10.0
"""zlib ratio above which a text counts as repetitive (slime)."""


def measure(subject: Subject) -> Measured:
    """Measure the rollouts of one round; there is no reference.

    Raises:
        DataError: A row cannot be read, or there is none.
    """
    path = subject.path / "rollouts.jsonl"
    rollouts = list(read_jsonl(path, Rollout))
    require_rows(rollouts, path, "rollouts")
    tally = Tally()
    rows = [_row(rollout, subject.recipe, tally) for rollout in rollouts]
    total = len(rollouts)
    facts = ("truncated_share", "repetition_share", "unjudged_share")
    summary: RowFacts = {
        **{name: tally.share(name, total) for name in facts},
        **_group_facts(rollouts, subject.recipe, tally),
        **_agreement(rollouts),
        **_length_facts(rollouts),
        "capped_share": _capped_share(rollouts, _cap(subject)),
        "entropy_ratio": _entropy_ratio(rollouts),
    }
    return Measured(rows, summary, tally.culprits)


def rollout_id(rollout: Rollout) -> str:
    """Stable id of a rollout within its round."""
    return f"batch {rollout.batch} group {rollout.group} sample {rollout.sample}"


def _row(rollout: Rollout, recipe: Recipe, tally: Tally) -> RowFacts:
    name, count = rollout_id(rollout), len(rollout.tokens)
    known = [value for value in rollout.logprobs if value is not None]
    tally.flag("truncated_share", name, rollout.finish_reason == "length")
    tally.flag(
        "repetition_share",
        name,
        rollout.finish_reason == "repetition" or _compressible(rollout.text),
    )
    tally.flag("unjudged_share", name, rollout.reward is None)
    context = recipe.extension[-1].window
    vocabulary = recipe.model.vocab_size
    return {
        "id": name,
        "logprobs_missing": len(rollout.logprobs) - len(known),
        "logprobs_positive": sum(value > 1e-6 for value in known),
        "empty": count == 0,
        "trainer_lengths_differ": len(rollout.trainer_logprobs) not in (0, count),
        "weight_lengths_differ": len(rollout.importance_weights) not in (0, count),
        "weight_negative": sum(value < 0 for value in rollout.importance_weights),
        "over_window": max(0, count - rollout.window),
        "over_context": max(0, len(rollout.prompt_tokens) + count - context),
        "truncation_unexplained": rollout.finish_reason == "length" and count != rollout.window,
        "token_outside_vocabulary": any(
            not 0 <= token < vocabulary for token in (*rollout.prompt_tokens, *rollout.tokens)
        ),
        "reward_disagrees": _reward_disagrees(rollout),
    }


def _compressible(text: str) -> bool:
    tail = text[-_TAIL_CHARACTERS:].encode("utf-8", "replace")
    return len(tail) > 200 and len(tail) / len(zlib.compress(tail)) > _COMPRESSED


def _reward_disagrees(rollout: Rollout) -> bool:
    """Whether the total is not the sum of its parts, or an unjudged sample has a reward."""
    if rollout.reward is None:
        return rollout.correct is not None
    if rollout.correct is None:
        return True
    parts = math.fsum(rollout.rewards.values())
    return bool(rollout.rewards) and abs(parts - rollout.reward) > 1e-6


def _group_facts(rollouts: Sequence[Rollout], recipe: Recipe, tally: Tally) -> RowFacts:
    groups: defaultdict[tuple[int, int], list[Rollout]] = defaultdict(list)
    for rollout in rollouts:
        groups[rollout.batch, rollout.group].append(rollout)
    for (batch, group), members in groups.items():
        name = f"batch {batch} group {group}"
        rewards = [member.reward for member in members if member.reward is not None]
        advantages = [m.advantage for m in members if m.advantage is not None]
        samples = {member.sample for member in members}
        whole = len(members) == recipe.rl.group_size == len(samples)
        tally.flag("broken_groups", name, not whole or len({m.prompt_id for m in members}) != 1)
        spread = max(rewards) - min(rewards) if rewards else 0.0
        tally.flag("zero_spread_share", name, spread < 1e-9)
        off = abs(math.fsum(advantages)) > 1e-3 * max(1, len(advantages))
        tally.flag("uncentred_groups", name, bool(advantages) and off)
    return {
        "groups": len(groups),
        "broken_groups": tally.counts["broken_groups"],
        "zero_spread_share": tally.share("zero_spread_share", len(groups)),
        "uncentred_groups": tally.counts["uncentred_groups"],
        "trained_share": sum(r.advantage is not None for r in rollouts) / len(rollouts),
    }


def _agreement(rollouts: Sequence[Rollout]) -> RowFacts:
    """How well sampler and trainer agree on the probability of the sampled tokens.

    Correlation of probabilities (M1 reports 0.9 before and 0.99 after its fp32 head), and the mean
    of r - 1 - log r with r = trainer / sampler, the k3 estimate of KL(sampler || trainer).
    """
    pairs = [
        (sampled, trained)
        for rollout in rollouts
        for sampled, trained in zip(rollout.logprobs, rollout.trainer_logprobs, strict=False)
        if sampled is not None
    ]
    if not pairs:
        return {"probability_correlation": None, "mismatch_kl": None, "mismatch_largest": None}
    sampler, trainer = np.array(pairs, dtype=np.float64).T
    log_ratio = np.clip(trainer - sampler, -50.0, 50.0)
    return {
        "probability_correlation": correlation(np.exp(sampler), np.exp(trainer)),
        "mismatch_kl": float(np.mean(np.expm1(log_ratio) - log_ratio)),
        "mismatch_largest": float(np.abs(np.exp(sampler) - np.exp(trainer)).max()),
    }


def correlation(a: Floats, b: Floats) -> float:
    """Pearson correlation; without spread 1 for equal series and 0 for others."""
    a_centred, b_centred = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a_centred @ a_centred) * float(b_centred @ b_centred))
    if scale == 0.0:
        return 1.0 if np.allclose(a, b, atol=1e-6) else 0.0
    return float(a_centred @ b_centred) / scale


def _length_facts(rollouts: Sequence[Rollout]) -> RowFacts:
    judged = [rollout for rollout in rollouts if rollout.reward is not None]
    lengths = np.array([len(rollout.tokens) for rollout in judged], dtype=np.float64)
    rewards = np.array([rollout.reward for rollout in judged], dtype=np.float64)
    right = lengths[[rollout.correct is True for rollout in judged]] if judged else lengths
    wrong = lengths[[rollout.correct is False for rollout in judged]] if judged else lengths
    ratio = None
    if len(right) and len(wrong):
        ratio = float(np.percentile(wrong, 99) / max(1.0, np.percentile(right, 99)))
    spread = len(judged) > 1 and rewards.std() > 0 and lengths.std() > 0
    return {
        "reward_length_correlation": correlation(rewards, lengths) if spread else None,
        "unsolved_length_ratio": ratio,
    }


def _cap(subject: Subject) -> float | None:
    """The cap that the round ran at: the ladder may have lowered the recipe's."""
    summary = json.loads(read_text(subject.path / "summary.json"))
    if "is_weight_cap" in summary:
        cap = summary["is_weight_cap"]
    else:
        cap = getattr(subject.recipe.rl.algorithm, "is_weight_cap", None)
    return float(cap) if isinstance(cap, int | float) else None


def _capped_share(rollouts: Sequence[Rollout], cap: float | None) -> float | None:
    weights = [weight for rollout in rollouts for weight in rollout.importance_weights]
    if cap is None or not weights:
        return None
    return sum(weight > cap for weight in weights) / len(weights)


def _entropy_ratio(rollouts: Sequence[Rollout]) -> float | None:
    """Mean surprise of sampled tokens in the last batch over that of the first."""
    surprise: defaultdict[int, list[float]] = defaultdict(list)
    for rollout in rollouts:
        surprise[rollout.batch].extend(-v for v in rollout.logprobs if v is not None)
    first, last = surprise[min(surprise)], surprise[max(surprise)]
    if len(surprise) < 2 or not first or not last or math.fsum(first) <= 0:
        return None
    return (math.fsum(last) / len(last)) / (math.fsum(first) / len(first))
