"""Policy-gradient objectives as settings of one unified form.

MiniMax-M1 report, eq. 4 to 7, with the additions of later work. The gradient of every objective is

    -sum_i c_i sum_t  sg(k_it  w_it  M_it) A_i  grad log pi(o_it)

where w is the importance weight pi / anchor within its own pair of bounds, M the token mask with
another pair (eq. 7) and, where set, a band outside of which a token is zeroed, k the correction of
the mismatch between trainer and sampler, and c_i the per-token coefficient of sequence i, computed
over the whole update and passed in, so that the result does not depend on how the update is cut
into microbatches. Objectives differ in these settings and in the value that they report; no
algorithm has a code path of its own.

Dimension suffixes: B = sequences, T = tokens of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor

from schemas.algorithms import Aggregation, Algorithm, Anchor, CorrectionConfig

LOG_RATIO_BOUND = 20.0
"""|log ratio| is bounded so that exp() stays finite in float32."""

Level = Literal["token", "sequence"]
Value = Literal["log_likelihood", "surrogate"]


@dataclass(frozen=True)
class Objective:
    """Settings of the unified form; an absent bound is open.

    Attributes:
        aggregation: what the mean of the loss runs over.
        value: `log_likelihood` reports sg(w) A log pi (CISPO, REINFORCE), `surrogate` reports
            min(r A, clip(r) A) (PPO and its kin). The gradient is that of the unified form in both.
        level: ratio of each token, or exp of the mean log-ratio of the sequence (GSPO).
        anchor: policy under the ratio: the recomputed one, or the sampler's.
        weight_floor: smallest importance weight, absolute.
        weight_cap: largest importance weight, absolute.
        mask_low: tokens with A < 0 and ratio < 1 - mask_low are dropped.
        mask_high: tokens with A > 0 and ratio > 1 + mask_high are dropped.
        band_low: tokens with a ratio below are dropped, whatever their advantage; absolute.
        band_high: tokens with a ratio above are dropped, whatever their advantage; absolute.
        correction: of the mismatch between trainer and sampler; only with the anchor `old`.
        sample_share: share of the sample mean in the aggregation `combined`.
    """

    aggregation: Aggregation
    value: Value = "log_likelihood"
    level: Level = "token"
    anchor: Anchor = "old"
    weight_floor: float | None = None
    weight_cap: float | None = None
    mask_low: float | None = None
    mask_high: float | None = None
    band_low: float | None = None
    band_high: float | None = None
    correction: CorrectionConfig | None = None
    sample_share: float = 0.5

    def __post_init__(self) -> None:
        """Refuse to correct twice for the same mismatch.

        Raises:
            ValueError: The anchor is the sampler and a correction is set.
        """
        if self.anchor == "rollout" and self.correction is not None:
            raise ValueError(
                "anchor 'rollout' already divides by the sampler's probability, so a correction "
                "would apply it twice; set anchor 'old' or leave the correction out"
            )


@dataclass(frozen=True)
class PolicyLoss:
    """Loss of a microbatch with what the audit needs; all but the loss is detached.

    Attributes:
        loss: scalar; sum over microbatches gives the loss of the update.
        ratio_BT: pi / pi_anchor per token (of the sequence at level `sequence`); 1 where masked.
        weight_BT: the factor that multiplied A grad log pi, correction included; 0 where nothing
            flows.
        correction_BT: factor for the mismatch between trainer and sampler, part of `weight_BT`;
            1 where masked, and everywhere without a correction.
    """

    loss: Tensor
    ratio_BT: Tensor
    weight_BT: Tensor
    correction_BT: Tensor


_FIXED: Mapping[str, Mapping[str, Any]] = {
    "cispo": {},
    "reinforce": {},
    "sao": {},
    "grpo": {"value": "surrogate", "aggregation": "sequence"},
    "dapo": {"value": "surrogate", "aggregation": "token"},
    "ppo_clip": {"value": "surrogate", "aggregation": "token"},
    "gspo": {"value": "surrogate", "aggregation": "sequence", "level": "sequence"},
}
"""What the name of an algorithm settles; the rest are the recipe's own fields."""

_NAMES = {
    "is_weight_floor": "weight_floor",
    "is_weight_cap": "weight_cap",
    "clip_low": "mask_low",
    "clip_high": "mask_high",
}


def objective_of(algorithm: Algorithm, is_weight_cap: float | None = None) -> Objective:
    """Translate an algorithm of a recipe; `is_weight_cap` is the ladder's, which may be lower."""
    own = {
        _NAMES.get(name, name): getattr(algorithm, name)
        for name in type(algorithm).model_fields
        if name != "kind"
    }
    if is_weight_cap is not None and "weight_cap" in own:
        own["weight_cap"] = is_weight_cap
    return Objective(**{**_FIXED[algorithm.kind], **own})


def sequence_coefficients(
    lengths: Sequence[int],
    groups: Sequence[int],
    aggregation: Aggregation,
    sample_share: float = 0.5,
) -> list[float]:
    """Per-token coefficient c_i of every sequence of an update; over all tokens they sum to 1.

    Args:
        lengths: response tokens of each sequence, all > 0.
        groups: prompt index of each sequence.
        aggregation: `token` averages over all tokens of the update (eq. 4), `sequence` over the
            tokens of each sequence and then over sequences (GRPO), `prompt` over the tokens of
            each prompt's samples and then over prompts (ScaleRL), `combined` mixes the first two
            (the report's late-stage remedy, decision 010).
        sample_share: share of `sequence` in `combined`, from 0 to 1.

    Raises:
        ValueError: A sequence has no token.
    """
    if min(lengths) < 1:
        raise ValueError(f"every sequence needs at least one token, got lengths {list(lengths)}")
    of_tokens = 1.0 / sum(lengths)
    if aggregation == "token":
        return [of_tokens] * len(lengths)
    of_samples = [1.0 / (length * len(lengths)) for length in lengths]
    if aggregation == "sequence":
        return of_samples
    if aggregation == "combined":
        return [sample_share * own + (1.0 - sample_share) * of_tokens for own in of_samples]
    tokens_of: dict[int, int] = {}
    for length, group in zip(lengths, groups, strict=True):
        tokens_of[group] = tokens_of.get(group, 0) + length
    return [1.0 / (tokens_of[group] * len(tokens_of)) for group in groups]


def policy_loss(
    objective: Objective,
    logp_BT: Tensor,
    old_logp_BT: Tensor,
    rollout_logp_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    coefficient_B: Tensor,
) -> PolicyLoss:
    """Loss of one microbatch under the unified form, in float32 or better.

    Args:
        objective: settings.
        logp_BT: log pi(token) with gradient.
        old_logp_BT: log-probability under the policy before the updates, from the trainer.
        rollout_logp_BT: log-probability under the sampler. A value that is not finite was lost by
            the sampler and gives its token the ratio 1, or the correction 1.
        advantage_B: advantage of each sequence.
        mask_BT: True at response tokens; everything else is selected out, never multiplied out.
        coefficient_B: from `sequence_coefficients`, over the whole update.
    """
    dtype = torch.promote_types(logp_BT.dtype, torch.float32)
    logp_BT = torch.where(mask_BT, logp_BT, 0.0).to(dtype)
    old_logp_BT, rollout_logp_BT = old_logp_BT.to(dtype), rollout_logp_BT.to(dtype)
    if objective.anchor == "rollout":
        anchor_BT, known_BT = rollout_logp_BT, mask_BT & torch.isfinite(rollout_logp_BT)
    else:
        anchor_BT, known_BT = old_logp_BT, mask_BT
    ratio_BT = _ratio(logp_BT.detach(), anchor_BT, mask_BT, known_BT, objective.level)
    correction_BT = _correction(objective.correction, old_logp_BT, rollout_logp_BT, mask_BT)
    advantage_BT = advantage_B.to(dtype)[:, None].expand_as(logp_BT)
    kept_BT = mask_BT & token_mask(ratio_BT, advantage_BT, objective.mask_low, objective.mask_high)
    inside_BT = _inside(ratio_BT, objective.band_low, objective.band_high)
    bounded_BT = _clip(ratio_BT, objective.weight_floor, objective.weight_cap)
    weight_BT = torch.where(kept_BT & inside_BT, bounded_BT * correction_BT, 0.0)
    coefficient_BT = torch.where(mask_BT, coefficient_B.to(dtype)[:, None], 0.0)
    loss = -(coefficient_BT * advantage_BT * weight_BT * logp_BT).sum()
    if objective.value == "surrogate":
        value_BT = _surrogate(objective, bounded_BT, advantage_BT) * correction_BT
        value_BT = torch.where(
            mask_BT & inside_BT, coefficient_B.to(dtype)[:, None] * value_BT, 0.0
        )
        loss = (loss - loss.detach()) - value_BT.sum()
    return PolicyLoss(loss, ratio_BT, weight_BT, correction_BT)


def token_mask(
    ratio_BT: Tensor, advantage_BT: Tensor, low: float | None, high: float | None
) -> Tensor:
    """Mask M of eq. 7: False where a clipped surrogate would stop the gradient.

    That is A > 0 with r > 1 + high, and A < 0 with r < 1 - low; an absent bound drops nothing.
    """
    kept_BT = torch.ones_like(ratio_BT, dtype=torch.bool)
    if high is not None:
        kept_BT &= ~((advantage_BT > 0) & (ratio_BT > 1.0 + high))
    if low is not None:
        kept_BT &= ~((advantage_BT < 0) & (ratio_BT < 1.0 - low))
    return kept_BT


def _ratio(
    numerator_BT: Tensor, denominator_BT: Tensor, mask_BT: Tensor, known_BT: Tensor, level: Level
) -> Tensor:
    """exp(numerator - denominator) without gradient; 1 where masked or not known.

    At level `sequence` it is exp of the mean over the sequence's known tokens, which does not
    grow with the length as the product of the ratios would.
    """
    log_BT = torch.where(known_BT, numerator_BT, 0.0) - torch.where(known_BT, denominator_BT, 0.0)
    if level == "sequence":
        log_BT = log_BT.sum(1, keepdim=True) / known_BT.sum(1, keepdim=True).clamp(min=1)
        log_BT = torch.where(mask_BT, log_BT, 0.0)
    return log_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()


def _correction(
    config: CorrectionConfig | None, old_BT: Tensor, rollout_BT: Tensor, mask_BT: Tensor
) -> Tensor:
    """Detached factor old / rollout, truncated at the cap or zeroed outside [low, cap]."""
    if config is None:
        return torch.ones_like(old_BT)
    known_BT = mask_BT & torch.isfinite(rollout_BT)
    ratio_BT = _ratio(old_BT.detach(), rollout_BT.detach(), mask_BT, known_BT, config.level)
    if config.outside == "truncate":
        return _clip(ratio_BT, config.low, config.cap)
    return torch.where(_inside(ratio_BT, config.low, config.cap), ratio_BT, 0.0)


def _surrogate(objective: Objective, ratio_BT: Tensor, advantage_BT: Tensor) -> Tensor:
    low = None if objective.mask_low is None else 1.0 - objective.mask_low
    high = None if objective.mask_high is None else 1.0 + objective.mask_high
    clipped_BT = _clip(ratio_BT, low, high)
    return torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)


def _inside(ratio_BT: Tensor, low: float | None, high: float | None) -> Tensor:
    """Which ratios lie in [low, high]; NaN counts as inside, so that it stays visible."""
    outside_BT = torch.zeros_like(ratio_BT, dtype=torch.bool)
    if low is not None:
        outside_BT |= ratio_BT < low
    if high is not None:
        outside_BT |= ratio_BT > high
    return ~outside_BT


def _clip(ratio_BT: Tensor, low: float | None, high: float | None) -> Tensor:
    if low is None and high is None:
        return ratio_BT
    return ratio_BT.clamp(min=low, max=high)
