"""The objectives token by token in plain Python: what conformance compares with.

No tensors and no automatic differentiation: the loss is a sum over tokens, and the gradient to each
token's log-probability is its closed form, -(c w M A). Every rule that implementations are known to
get wrong can be broken here by name, so that a wrong value can be told from another wrong value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

Bug = Literal[
    "gradient flows through the weight",
    "no log-probability factor",
    "cap is 0.2 instead of an absolute 1 + eps",
    "cap is an offset from 1",
    "weight may not fall below 1",
    "weight is capped for positive advantages only",
    "mask uses the bounds of the weight",
    "ratio is inverted",
    "padding stays in the denominator",
    "mean of the means of microbatches",
    "mean over sequences instead of tokens",
    "PPO's clip instead of CISPO's cap",
]
BUGS: tuple[Bug, ...] = Bug.__args__  # type: ignore[attr-defined]

Rows = Sequence[Sequence[float]]


@dataclass(frozen=True)
class Answer:
    """Loss, and its gradient to each log-probability; 0 at padding."""

    loss: float
    grad_logp: list[list[float]]


@dataclass(frozen=True)
class Inputs:
    """An update: log-probabilities [sequences][tokens], advantages and groups by sequence."""

    logp: Rows
    old_logp: Rows
    rollout_logp: Rows
    advantages: Sequence[float]
    mask: Sequence[Sequence[int]]
    groups: Sequence[int]
    cut: Sequence[int] = ()
    """Rows at which the update is cut into microbatches, whose losses are added up."""


def answer(inputs: Inputs, algorithm: dict[str, Any], bug: Bug | None = None) -> Answer:
    """Loss and gradient of an update under an algorithm of a recipe, right or with one bug."""
    coefficients = _coefficients(inputs, algorithm, bug)
    loss, grads = 0.0, []
    for row in range(len(inputs.logp)):
        places = [t for t, kept in enumerate(inputs.mask[row]) if kept]
        ratios = _ratios(inputs, algorithm, row, places, bug)
        corrections = _corrections(inputs, algorithm.get("correction"), row, places)
        grad_row = [0.0] * len(inputs.logp[row])
        for token in places:
            value, slope = _token(
                ratios[token],
                inputs.advantages[row],
                inputs.logp[row][token],
                algorithm,
                bug,
            )
            scale = coefficients[row] * corrections[token]
            loss -= scale * value
            grad_row[token] = -scale * slope
        grads.append(grad_row)
    return Answer(loss, grads)


def _token(
    ratio: float, advantage: float, logp: float, algorithm: dict[str, Any], bug: Bug | None
) -> tuple[float, float]:
    """What a token adds to the objective, and the slope of that in its log-probability."""
    kind = algorithm["kind"]
    if bug == "PPO's clip instead of CISPO's cap":
        kind, algorithm = "ppo_clip", {"kind": "ppo_clip", "clip_low": 0.2, "clip_high": 0.2}
    if kind in ("grpo", "dapo", "ppo_clip", "gspo"):
        low, high = 1 - algorithm["clip_low"], 1 + algorithm["clip_high"]
        clipped = min(max(ratio, low), high)
        value = min(ratio * advantage, clipped * advantage)
        kept = not (advantage > 0 and ratio > high) and not (advantage < 0 and ratio < low)
        return value, ratio * advantage if kept else 0.0
    if kind == "sao" and not algorithm["band_low"] <= ratio <= algorithm["band_high"]:
        return 0.0, 0.0
    weight = _bounded(ratio, advantage, algorithm, bug)
    if not _kept(ratio, advantage, algorithm, bug):
        return 0.0, 0.0
    if bug == "no log-probability factor":
        return weight * advantage, 0.0
    slope = weight * advantage
    if bug == "gradient flows through the weight" and weight == ratio:
        slope += weight * advantage * logp
    return weight * advantage * logp, slope


def _bounded(ratio: float, advantage: float, algorithm: dict[str, Any], bug: Bug | None) -> float:
    cap, floor = algorithm.get("is_weight_cap"), algorithm.get("is_weight_floor")
    if cap is not None and bug == "cap is 0.2 instead of an absolute 1 + eps":
        cap = 0.2
    if cap is not None and bug == "cap is an offset from 1":
        cap += 1
    if bug == "weight may not fall below 1":
        floor = 1.0
    if bug == "weight is capped for positive advantages only" and advantage < 0:
        cap = None
    weight = ratio if cap is None else min(ratio, cap)
    return weight if floor is None else max(weight, floor)


def _kept(ratio: float, advantage: float, algorithm: dict[str, Any], bug: Bug | None) -> bool:
    low, high = algorithm.get("mask_low"), algorithm.get("mask_high")
    if bug == "mask uses the bounds of the weight" and (low is not None or high is not None):
        cap = algorithm.get("is_weight_cap")
        high = None if cap is None else cap - 1
    if high is not None and advantage > 0 and ratio > 1 + high:
        return False
    return not (low is not None and advantage < 0 and ratio < 1 - low)


def _ratios(
    inputs: Inputs, algorithm: dict[str, Any], row: int, places: Sequence[int], bug: Bug | None
) -> dict[int, float]:
    """Ratio of each response token; a lost sampler probability gives 1."""
    anchor = inputs.rollout_logp if algorithm.get("anchor") == "rollout" else inputs.old_logp
    logs = {}
    for token in places:
        known = math.isfinite(anchor[row][token])
        logs[token] = inputs.logp[row][token] - anchor[row][token] if known else 0.0
        if bug == "ratio is inverted":
            logs[token] = -logs[token]
    if algorithm["kind"] == "gspo":
        mean = math.fsum(logs.values()) / len(logs)
        logs = dict.fromkeys(places, mean)
    return {token: math.exp(min(20.0, max(-20.0, log))) for token, log in logs.items()}


def _corrections(
    inputs: Inputs, correction: dict[str, Any] | None, row: int, places: Sequence[int]
) -> dict[int, float]:
    """Factor old / sampler of each response token, truncated or zeroed beyond its bounds."""
    if correction is None:
        return dict.fromkeys(places, 1.0)
    old, sampler = inputs.old_logp[row], inputs.rollout_logp[row]
    known = [token for token in places if math.isfinite(sampler[token])]
    logs = {token: old[token] - sampler[token] if token in known else 0.0 for token in places}
    if correction["level"] == "sequence":
        mean = math.fsum(logs.values()) / max(1, len(known))
        logs = dict.fromkeys(places, mean)
    low = correction["low"] if correction["low"] is not None else 0.0
    factors = {}
    for token, log in logs.items():
        ratio = math.exp(min(20.0, max(-20.0, log)))
        if correction["outside"] == "truncate":
            factors[token] = min(max(ratio, low), correction["cap"])
        else:
            factors[token] = ratio if low <= ratio <= correction["cap"] else 0.0
    return factors


def _coefficients(inputs: Inputs, algorithm: dict[str, Any], bug: Bug | None) -> list[float]:
    """Coefficient of each sequence's tokens: one over what the mean runs over."""
    lengths = [sum(row) for row in inputs.mask]
    if bug == "padding stays in the denominator":
        lengths = [len(row) for row in inputs.mask]
    count = len(lengths)
    aggregation = algorithm.get("aggregation", "token")
    if algorithm["kind"] in ("grpo", "gspo"):
        aggregation = "sequence"
    if bug == "mean over sequences instead of tokens" and aggregation == "token":
        aggregation = "sequence"
    if bug == "mean of the means of microbatches" and aggregation == "token" and inputs.cut:
        edges = [0, *inputs.cut, count]
        pieces = [range(a, b) for a, b in pairwise(edges)]
        return [
            1 / (len(pieces) * sum(lengths[row] for row in piece))
            for piece in pieces
            for _ in piece
        ]
    by_token = [1 / sum(lengths)] * count
    by_sequence = [1 / (count * length) for length in lengths]
    if aggregation == "token":
        return by_token
    if aggregation == "sequence":
        return by_sequence
    if aggregation == "combined":
        share = algorithm["sample_share"]
        return [share * s + (1 - share) * t for s, t in zip(by_sequence, by_token, strict=True)]
    tokens = {
        group: sum(n for n, own in zip(lengths, inputs.groups, strict=True) if own == group)
        for group in inputs.groups
    }
    return [1 / (len(tokens) * tokens[group]) for group in inputs.groups]
