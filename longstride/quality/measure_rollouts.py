"""E5: the rollouts of one RL round before the next."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from longstride.quality.agreement import Agreement
from longstride.quality.frame import (
    Columns,
    Measured,
    MeasuredRows,
    RowFacts,
    RowWriter,
    require_rows,
)
from longstride.quality.scripts import scripts_of
from longstride.quality.subject import Subject
from longstride.store.files import read_jsonl, read_text
from schemas.recipe import Recipe
from schemas.rows import Rollout

Floats = NDArray[np.float64]

_TAIL_CHARACTERS: Final = 10_000
_COMPRESSED: Final = 10.0
"""zlib ratio above which a text counts as repetitive (slime)."""

COLUMNS: Final[Columns] = {
    "id": "text",
    "prompt_id": "text",
    "family": "text",
    "batch": "count",
    "group": "count",
    "sample": "count",
    "length": "count",
    "finish_reason": "text",
    "reward": "number",
    "correct": "flag",
    "not_judged": "text",
    "advantage": "number",
    "logprobs_missing": "count",
    "logprobs_positive": "count",
    "surprise": "number",
    "empty": "flag",
    "trainer_lengths_differ": "flag",
    "weight_lengths_differ": "flag",
    "weight_negative": "count",
    "weights": "count",
    "weights_capped": "count",
    "largest_weight": "number",
    "over_window": "count",
    "over_context": "count",
    "truncation_unexplained": "flag",
    "token_outside_vocabulary": "flag",
    "reward_disagrees": "flag",
    "repetitive": "flag",
    "script_mixed": "flag",
}


def measure(subject: Subject, writer: RowWriter) -> Measured:
    """Measure the rollouts of one round; there is no reference.

    Rollouts are read one at a time; facts of groups and of the round are counted over the file of
    measured rows.

    Raises:
        DataError: A row cannot be read, or there is none.
    """
    path = subject.path / "rollouts.jsonl"
    agreement = Agreement()
    cap = _cap(subject)
    for rollout in read_jsonl(path, Rollout):
        writer.append(_row(rollout, subject.recipe, cap))
        agreement.add(rollout)
    require_rows(writer.count, path, "rollouts")
    rows = writer.finish()
    groups, culprits = _group_facts(rows, subject.recipe)
    shares, share_culprits = _shares(rows)
    summary: RowFacts = {
        **shares,
        **groups,
        **agreement.facts(),
        **_length_facts(rows),
        **_weight_facts(rows, cap),
        "entropy_ratio": _entropy_ratio(rows),
        "verifier_failure_share": _verifier_failures(rows),
    }
    return Measured(rows, summary, {**culprits, **share_culprits})


def rollout_id(rollout: Rollout) -> str:
    """Stable id of a rollout within its round."""
    return f"batch {rollout.batch} group {rollout.group} sample {rollout.sample}"


def _row(rollout: Rollout, recipe: Recipe, cap: float | None) -> RowFacts:
    count = len(rollout.tokens)
    known = [value for value in rollout.logprobs if value is not None]
    weights = rollout.importance_weights
    tokens = rollout.prompt_tokens + rollout.tokens
    stays = not tokens or 0 <= min(tokens) <= max(tokens) < recipe.model.vocab_size
    return {
        "id": rollout_id(rollout),
        "prompt_id": rollout.prompt_id,
        "family": rollout.family,
        "batch": rollout.batch,
        "group": rollout.group,
        "sample": rollout.sample,
        "length": count,
        "finish_reason": rollout.finish_reason,
        "reward": rollout.reward,
        "correct": rollout.correct,
        "not_judged": rollout.not_judged,
        "advantage": rollout.advantage,
        "logprobs_missing": len(rollout.logprobs) - len(known),
        "logprobs_positive": _count(known, 1e-6),
        "surprise": -math.fsum(known),
        "empty": count == 0,
        "trainer_lengths_differ": len(rollout.trainer_logprobs) not in (0, count),
        "weight_lengths_differ": len(weights) not in (0, count),
        "weight_negative": sum(value < 0 for value in weights)
        if min(weights, default=0) < 0
        else 0,
        "weights": len(weights),
        "weights_capped": 0 if cap is None else _count(weights, cap),
        "largest_weight": max(weights, default=None),
        "over_window": max(0, count - rollout.window),
        "over_context": max(0, len(tokens) - recipe.extension[-1].window),
        "truncation_unexplained": rollout.finish_reason == "length" and count != rollout.window,
        "token_outside_vocabulary": not stays,
        "reward_disagrees": _reward_disagrees(rollout),
        "repetitive": rollout.finish_reason == "repetition" or _compressible(rollout.text),
        "script_mixed": len(scripts_of(rollout.text)) > 1,
    }


def _count(values: Sequence[float], above: float) -> int:
    """How many values exceed a limit; nearly always none, which the largest tells."""
    return sum(value > above for value in values) if max(values, default=above) > above else 0


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


def _shares(rows: MeasuredRows) -> tuple[RowFacts, dict[str, list[str]]]:
    import polars as pl

    conditions = {
        "truncated_share": pl.col("finish_reason") == "length",
        "repetition_share": pl.col("repetitive"),
        "unjudged_share": pl.col("reward").is_null(),
        "script_mixing_share": pl.col("script_mixed"),
        "trained_share": pl.col("advantage").is_not_null(),
    }
    facts = rows.facts(**{name: rule.mean() for name, rule in conditions.items()})
    culprits = {
        name: rows.ids(rule)
        for name, rule in conditions.items()
        if name != "trained_share" and facts[name]
    }
    return facts, culprits


def _group_facts(rows: MeasuredRows, recipe: Recipe) -> tuple[RowFacts, dict[str, list[str]]]:
    import polars as pl

    size = recipe.rl.group_size
    advantage = pl.col("advantage")
    groups = (
        rows.scan()
        .group_by("batch", "group")
        .agg(
            broken=(pl.len() != size)
            | (pl.col("sample").n_unique() != size)
            | (pl.col("prompt_id").n_unique() != 1),
            zero_spread=(pl.col("reward").max() - pl.col("reward").min()).fill_null(0.0) < 1e-9,
            stuck=(pl.col("correct").sum() == 0)
            & ((pl.col("finish_reason") == "length").mean() >= 0.5),
            uncentred=advantage.sum().abs() > 1e-3 * advantage.count().clip(1),
        )
        .sort("batch", "group")
        .collect(engine="streaming")
    )
    facts = {"broken_groups": "broken", "zero_spread_share": "zero_spread",
             "uncentred_groups": "uncentred", "stuck_group_share": "stuck"}  # fmt: skip
    culprits = {}
    for fact, column in facts.items():
        found = groups.filter(pl.col(column)).head(1_000)
        culprits[fact] = [f"batch {b} group {g}" for b, g in found.select("batch", "group").rows()]
    summary: RowFacts = {
        "groups": groups.height,
        "broken_groups": int(groups["broken"].sum()),
        "zero_spread_share": float(groups["zero_spread"].mean()),
        "stuck_group_share": float(groups["stuck"].mean()),
        "uncentred_groups": int(groups["uncentred"].sum()),
    }
    return summary, culprits


def _length_facts(rows: MeasuredRows) -> RowFacts:
    import polars as pl

    judged = pl.col("reward").is_not_null()
    length, reward = pl.col("length").cast(pl.Float64), pl.col("reward")
    right, wrong = (length.filter(judged & (pl.col("correct") == value)) for value in (True, False))
    found = rows.facts(
        judged=judged.sum(),
        reward_spread=reward.filter(judged).std(),
        length_spread=length.filter(judged).std(),
        correlation=pl.corr(reward, length),
        right=right.quantile(0.99, "linear"),
        wrong=wrong.quantile(0.99, "linear"),
        window=pl.col("length").max(),
    )
    spread = bool(found["reward_spread"]) and bool(found["length_spread"])
    ratio = None
    if found["right"] is not None and found["wrong"] is not None:
        ratio = _number(found["wrong"]) / max(1.0, _number(found["right"]))
    overall = _number(found["correlation"]) if spread else None
    low, high = _interval(overall, int(_number(found["judged"])))
    return {
        "reward_length_correlation": overall,
        "reward_length_correlation_low": low,
        "reward_length_correlation_high": high,
        "unsolved_length_ratio": ratio,
        **_by_family(rows),
    }


def _by_family(rows: MeasuredRows) -> RowFacts:
    """The family whose reward follows length most surely: the interval's end nearest to zero."""
    import polars as pl

    found = (
        rows.scan()
        .filter(pl.col("reward").is_not_null())
        .group_by("family")
        .agg(n=pl.len(), r=pl.corr("reward", pl.col("length").cast(pl.Float64)))
        .sort("family")
        .collect(engine="streaming")
    )
    surest = []
    for _family, count, value in found.rows():
        if value is None or math.isnan(value):
            continue
        low, high = _interval(value, count)
        if low is not None and high is not None:
            surest.append(max(low, -high, 0.0))
    return {"family_length_correlation": max(surest) if surest else None}


def _interval(value: float | None, count: int) -> tuple[float | None, float | None]:
    """95% interval of a correlation by Fisher's z; None below five samples."""
    if value is None or count < 5:
        return None, None
    centre = math.atanh(max(-0.999999, min(0.999999, value)))
    reach = 1.959963984540054 / math.sqrt(count - 3)
    return math.tanh(centre - reach), math.tanh(centre + reach)


def _number(value: Any) -> float:
    return float(value or 0.0)


def _cap(subject: Subject) -> float | None:
    """The cap that the round ran at: the ladder may have lowered the recipe's."""
    summary = json.loads(read_text(subject.path / "summary.json"))
    if "is_weight_cap" in summary:
        cap = summary["is_weight_cap"]
    else:
        cap = getattr(subject.recipe.rl.algorithm, "is_weight_cap", None)
    return float(cap) if isinstance(cap, int | float) else None


_FAILURES: Final = ("timeout", "died", "error", "unavailable")


def _verifier_failures(rows: MeasuredRows) -> float | None:
    """Share of samples that the verifier failed on; None: no unjudged sample says why."""
    import polars as pl

    reason = pl.col("not_judged")
    found = rows.facts(
        unjudged=pl.col("reward").is_null().sum(),
        told=reason.is_not_null().sum(),
        failed=reason.is_in(_FAILURES).sum(),
    )
    if found["unjudged"] and not found["told"]:
        return None
    return _number(found["failed"]) / rows.count


def _weight_facts(rows: MeasuredRows, cap: float | None) -> RowFacts:
    import polars as pl

    found = rows.facts(
        weights=pl.col("weights").sum(),
        capped=pl.col("weights_capped").sum(),
        largest=pl.col("largest_weight").max(),
    )
    total = _number(found["weights"])
    return {
        "capped_share": None if cap is None or not total else _number(found["capped"]) / total,
        "largest_weight": found["largest"],
    }


def _entropy_ratio(rows: MeasuredRows) -> float | None:
    """Mean surprise of sampled tokens in the last batch over that of the first."""
    import polars as pl

    batches = (
        rows.scan()
        .group_by("batch")
        .agg(
            total=pl.col("surprise").sum(),
            tokens=(pl.col("length") - pl.col("logprobs_missing")).sum(),
        )
        .sort("batch")
        .collect(engine="streaming")
        .rows()
    )
    (_, first, of_first), (_, last, of_last) = batches[0], batches[-1]
    if len(batches) < 2 or not of_first or not of_last or first <= 0:
        return None
    return float((last / of_last) / (first / of_first))
