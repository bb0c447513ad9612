"""Which rollouts and answers a person sees: few, telling ones, the same ones every time."""

from __future__ import annotations

from schemas.rows import EvalSample, Rollout

GROUPS, SAMPLES, ANSWERS = 3, 8, 6


def pick_rollouts(rows: list[Rollout]) -> list[Rollout]:
    """Whole groups: widest reward spread first, then most changed weights, then the longest."""
    groups: dict[tuple[int, int, str], list[Rollout]] = {}
    for row in rows:
        groups.setdefault((row.batch, row.group, row.prompt_id), []).append(row)
    chosen: list[tuple[int, int, str]] = []
    for telling in (_spread, _largest_weight, _length):
        rest = [key for key in groups if key not in chosen]
        if rest:
            chosen.append(max(rest, key=lambda key: telling(groups[key])))
    return [row for key in sorted(chosen[:GROUPS]) for row in groups[key][:SAMPLES]]


def _spread(rows: list[Rollout]) -> float:
    """Nearest to half right; reflection in the text breaks ties."""
    judged = [row.correct for row in rows if row.correct is not None]
    share = sum(judged) / len(judged) if judged else 0.0
    return share * (1 - share) + 0.01 * any("wait" in row.text.lower() for row in rows)


def _largest_weight(rows: list[Rollout]) -> float:
    return max((w for row in rows for w in row.importance_weights), default=0.0)


def _length(rows: list[Rollout]) -> float:
    return max((len(row.tokens) for row in rows), default=0)


def pick_answers(samples: list[EvalSample]) -> list[EvalSample]:
    """One sample a problem, which tells its family and level; only a few keep their text."""
    first: dict[str, EvalSample] = {}
    for sample in samples:
        first.setdefault(sample.prompt_id, sample)
    kept = list(first.values())
    stride = max(1, len(kept) // ANSWERS)
    return [
        sample if index % stride == 0 and index // stride < ANSWERS
        else sample.model_copy(update={"text": ""})
        for index, sample in enumerate(kept)
    ]  # fmt: skip
