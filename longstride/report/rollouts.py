"""Sample rollouts: every token coloured by its importance weight, siblings side by side."""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from longstride.report import figures, states
from longstride.report.curves import lookup
from longstride.report.markup import Safe, join, json_attribute, tag
from longstride.rl.reflection import ReflectionMatcher
from schemas.audit import AuditConfig
from schemas.ladder import LadderState
from schemas.rows import Rollout
from schemas.run import RunRecord

EDGES = (0.5, 0.71, 0.84, 0.93, 0.98, 1.02, 1.075, 1.19, 1.41, 2.0)
"""Bounds of the eleven colours: symmetric about 1 on a logarithmic scale."""
GROUPS, SAMPLES, TOKENS = 4, 8, 640
BUDGET = 24_000
"""Tokens on the page; beyond it, rollouts are counted but not spelled out."""


def draw(record: RunRecord) -> Safe:
    """A foldable block a round; the last one is open."""
    rounds = {name: rows for name, rows in record.rollouts.items() if rows}
    if not rounds:
        return tag("p", "No rollout was sampled yet.", class_="empty")
    caps = caps_by_round(record.recipe, record.ladder, list(rounds))
    matcher = _matcher(record)
    left = BUDGET
    parts = []
    for index, (name, rows) in enumerate(rounds.items()):
        share = left // (len(rounds) - index)
        block, used = _round(name, rows, record.tokens, matcher, caps[name], share,
                             last=index == len(rounds) - 1)  # fmt: skip
        left -= used
        parts.append(block)
    return join(_legend(next(reversed(caps.values()))), *parts)


def _matcher(record: RunRecord) -> ReflectionMatcher:
    """The recipe's reflection words on the texts of the tokens."""
    words = lookup(dict(record.recipe), "rl.audit.reflection")
    try:
        config = AuditConfig() if words is None else AuditConfig(reflection=words)
    except ValidationError:
        # A recipe of another version: its rollouts are shown all the same.
        config = AuditConfig()
    return ReflectionMatcher(
        config.reflection, lambda token: text_of(token, record.tokens).encode()
    )


def caps_by_round(
    recipe: Mapping[str, Any], ladder: LadderState | None, rounds: list[str]
) -> dict[str, float | None]:
    """The cap in force: the recipe's, lowered by every remedy before the round."""
    start = lookup(dict(recipe), "rl.algorithm.is_weight_cap")
    factor = lookup(dict(recipe), "ladder.remedy_cap_factor")
    cap = float(start) if isinstance(start, int | float) else None
    decisions = {e.round: e.decision for e in ladder.history} if ladder else {}
    caps: dict[str, float | None] = {}
    for position, name in enumerate(rounds, start=1):
        found = re.search(r"(\d+)\D*\Z", name)
        number = int(found.group(1)) if found else position
        remedies = sum(1 for r, d in decisions.items() if d == "remedy" and r < number)
        lowered = cap
        if cap is not None and isinstance(factor, int | float):
            lowered = 1 + (cap - 1) * float(factor) ** remedies
        caps[name] = lowered
    return caps


def _legend(cap: float | None) -> Safe:
    steps = [tag("i", class_=f"w{i}") for i in range(len(EDGES) + 1)]
    ends = (figures.number(EDGES[0]), "1", figures.number(EDGES[-1]))
    capped = f"above the cap of {figures.number(cap)}" if cap is not None else "above the cap"
    return tag(
        "div",
        tag("span", "importance weight ", ends[0], " ", tag("span", *steps, class_="ramp"), " ",
            ends[2]),
        tag("span", tag("b", "token", class_="w10 cap"), capped),
        tag("span", tag("b", "Wait", class_="reflect"), "reflection"),
        tag("span", tag("b", "token", class_="w5"), "no change, or not used in an update"),
        class_="legend token-legend",
    )  # fmt: skip


def _round(
    name: str,
    rows: list[Rollout],
    tokens: Mapping[int | str, str] | Mapping[str, str],
    matcher: ReflectionMatcher,
    cap: float | None,
    budget: int,
    *,
    last: bool,
) -> tuple[Safe, int]:
    groups: dict[tuple[int, int, str], list[Rollout]] = {}
    for row in rows:
        groups.setdefault((row.batch, row.group, row.prompt_id), []).append(row)
    used, blocks = 0, []
    for key, siblings in list(groups.items())[:GROUPS]:
        block, spent = _group(key, siblings, tokens, matcher, cap, budget - used)
        used += spent
        blocks.append(block)
    judged = [r.correct for r in rows if r.correct is not None]
    summary = tag(
        "summary",
        tag("span", name, class_="gate-stage"),
        tag("span", f"window {rows[0].window:,} tokens", class_="gate-count"),
        tag("span", f"{min(len(groups), GROUPS)} of {figures.plural(len(groups), 'group')}",
            class_="gate-count"),
        tag("span", f"{sum(judged)} of {len(judged)} correct", class_="gate-count"),
    )  # fmt: skip
    return tag("details", summary, *blocks, class_="round-block", open=last), used


def _group(
    key: tuple[int, int, str],
    siblings: list[Rollout],
    tokens: Mapping[Any, str],
    matcher: ReflectionMatcher,
    cap: float | None,
    budget: int,
) -> tuple[Safe, int]:
    prompt = "".join(text_of(t, tokens) for t in siblings[0].prompt_tokens[-TOKENS:])
    rewards = [s.reward for s in siblings if s.reward is not None]
    mean = sum(rewards) / len(rewards) if rewards else None
    head = tag(
        "div",
        tag("span", key[2], class_="prompt-id"),
        tag("span", f"batch {key[0]}, group {key[1]}"),
        tag("span", figures.plural(len(siblings), "sample")),
        tag("span", f"mean reward {figures.number(mean, 3)}"),
        class_="group-head",
    )
    used, shown = 0, []
    for sample in siblings[:SAMPLES]:
        if used + len(sample.tokens) > budget and used:
            break
        used += min(len(sample.tokens), TOKENS)
        shown.append(_sample(sample, tokens, matcher, cap))
    rest = len(siblings) - len(shown)
    more = tag("p", f"{figures.plural(rest, 'sample')} more not shown.", class_="note")
    return tag("div", head, tag("pre", prompt, class_="prompt"), *shown, more if rest else None,
               class_="group"), used  # fmt: skip


def _sample(
    row: Rollout, tokens: Mapping[Any, str], matcher: ReflectionMatcher, cap: float | None
) -> Safe:
    tone, word = {True: ("ok", "correct"), False: ("bad", "wrong"), None: ("wait", "not judged")}[
        row.correct
    ]
    parts = [f"{name} {figures.number(value, 3)}" for name, value in row.rewards.items()]
    reward = tag("span", "reward ", tag("b", figures.number(row.reward, 3)),
                 f" ({', '.join(parts)})" if parts else None)  # fmt: skip
    advantage = "none, group dropped" if row.advantage is None else figures.number(row.advantage, 3)
    facts = tag(
        "div",
        states.pill(tone, word),
        reward,
        tag("span", "advantage ", tag("b", advantage)),
        tag("span", f"{len(row.tokens):,} of {row.window:,} tokens"),
        tag("span", {"stop": "stopped", "length": "cut at the window",
                     "repetition": "stopped for repetition"}[row.finish_reason]),
        class_="sample-head",
    )  # fmt: skip
    return tag("div", facts, _tokens(row, tokens, matcher, cap), class_="sample")


def _tokens(
    row: Rollout, tokens: Mapping[Any, str], matcher: ReflectionMatcher, cap: float | None
) -> Safe:
    shown = row.tokens[:TOKENS]
    texts = [text_of(t, tokens) for t in shown]
    marked = {i for first, last, _ in matcher.find(shown) for i in range(first, last + 1)}
    spans = []
    for index, text in enumerate(texts):
        weight = row.importance_weights[index] if index < len(row.importance_weights) else None
        names = [f"w{color_of(weight)}"]
        if weight is not None and cap is not None and weight > cap:
            names.append("cap")
        if index in marked:
            names.append("reflect")
        spans.append(tag("b", visible(text), class_=" ".join(names)))
    rest = len(row.tokens) - len(shown)
    tail = tag("i", f" … {rest:,} more tokens", class_="quiet") if rest else None
    data = {
        "i": shown,
        "s": [_rounded(v) for v in row.logprobs[:TOKENS]],
        "t": [_rounded(v) for v in row.trainer_logprobs[:TOKENS]],
        "w": [_rounded(v) for v in row.importance_weights[:TOKENS]],
        "c": cap,
    }
    return tag("div", *spans, tail, class_="tokens", data_tokens=json_attribute(data))


def _rounded(value: float | None) -> float | None:
    """Four digits; null for what JSON cannot hold, which rounding up may reach too."""
    rounded = None if value is None else float(f"{value:.4g}")
    return rounded if rounded is not None and math.isfinite(rounded) else None


def text_of(token: int, tokens: Mapping[Any, str]) -> str:
    """Text of a token, or its number where the tokenizer is not known."""
    return tokens.get(str(token), f"‹{token}›")  # noqa: RUF001


def visible(text: str) -> str:
    """Line breaks and tabs that one can see."""
    return text.replace("\n", "↵\n").replace("\t", "⇥\t")


def color_of(weight: float | None) -> int:
    """Slot of the diverging scale; the middle one for 1 and for no weight."""
    if weight is None or not math.isfinite(weight):
        return len(EDGES) // 2
    return bisect_right(EDGES, weight)
