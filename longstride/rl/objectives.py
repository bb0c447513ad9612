"""Policy-gradient objectives as settings of one unified form.

MiniMax-M1 report, eq. 4 to 7: loss = -sum_i c_i sum_t sg(w_it) A_i log pi(o_it) M_it, where w is
the importance weight within its own bounds, M the token mask with another pair of bounds, and c_i
the per-token coefficient of sequence i, which is computed over the whole update and passed in, so
that the result does not depend on how the update is cut into microbatches.

Dimension suffixes: B = sequences, T = tokens of the longest sequence.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from schemas.algorithms import (
    Aggregation,
    Algorithm,
    Anchor,
    CispoConfig,
    GspoConfig,
    ReinforceConfig,
)

LOG_RATIO_BOUND = 20.0
"""|log ratio| is bounded so that exp() stays finite in float32."""

Form = Literal["weighted", "clipped_token", "clipped_sequence"]


@dataclass(frozen=True)
class Objective:
    """Settings of the unified form.

    `weighted` is REINFORCE with a detached weight (CISPO); `clipped_token` and `clipped_sequence`
    are PPO's surrogate on token ratios and on the length-normalised sequence ratio (GSPO).
    """

    form: Form
    aggregation: Aggregation
    anchor: Anchor = "old"
    weight_floor: float | None = None
    weight_cap: float | None = None
    mask_low: float | None = None
    mask_high: float | None = None
    clip_low: float = 0.0
    clip_high: float = 0.0


@dataclass(frozen=True)
class PolicyLoss:
    """Loss of a microbatch with what the audit needs.

    Attributes:
        loss: scalar; sum over microbatches gives the loss of the update.
        ratio_BT: pi / pi_anchor per token, detached; 1 at masked positions.
        weight_BT: the weight that multiplied the gradient, detached; 0 where nothing flows.
    """

    loss: Tensor
    ratio_BT: Tensor
    weight_BT: Tensor


def objective_of(algorithm: Algorithm, is_weight_cap: float | None = None) -> Objective:
    """Translate an algorithm of a recipe; `is_weight_cap` is the ladder's, which may be lower."""
    if isinstance(algorithm, CispoConfig):
        return Objective(
            form="weighted",
            aggregation=algorithm.aggregation,
            anchor=algorithm.anchor,
            weight_floor=algorithm.is_weight_floor,
            weight_cap=is_weight_cap if is_weight_cap is not None else algorithm.is_weight_cap,
            mask_low=algorithm.mask_low,
            mask_high=algorithm.mask_high,
        )
    if isinstance(algorithm, ReinforceConfig):
        return Objective(
            form="weighted", aggregation=algorithm.aggregation, anchor=algorithm.anchor
        )
    if isinstance(algorithm, GspoConfig):
        form: Form = "clipped_sequence"
        aggregation: Aggregation = "sequence"
    else:
        form = "clipped_token"
        aggregation = "sequence" if algorithm.kind == "grpo" else "token"
    return Objective(
        form=form,
        aggregation=aggregation,
        clip_low=algorithm.clip_low,
        clip_high=algorithm.clip_high,
    )


def sequence_coefficients(
    lengths: Sequence[int], groups: Sequence[int], aggregation: Aggregation
) -> list[float]:
    """Per-token coefficient c_i of every sequence of an update.

    Args:
        lengths: response tokens of each sequence, all > 0.
        groups: prompt index of each sequence.
        aggregation: `token` averages over all tokens of the update (eq. 4), `sequence` over the
            tokens of each sequence and then over sequences (GRPO), `prompt` over the tokens of
            each prompt's samples and then over prompts (ScaleRL).
    """
    if min(lengths) < 1:
        raise ValueError(f"every sequence needs at least one token, got lengths {list(lengths)}")
    if aggregation == "token":
        return [1.0 / sum(lengths)] * len(lengths)
    if aggregation == "sequence":
        return [1.0 / (length * len(lengths)) for length in lengths]
    tokens_of: dict[int, int] = {}
    for length, group in zip(lengths, groups, strict=True):
        tokens_of[group] = tokens_of.get(group, 0) + length
    return [1.0 / (tokens_of[group] * len(tokens_of)) for group in groups]


def policy_loss(
    objective: Objective,
    logp_BT: Tensor,
    anchor_logp_BT: Tensor,
    advantage_B: Tensor,
    mask_BT: Tensor,
    coefficient_B: Tensor,
) -> PolicyLoss:
    """Loss of one microbatch under the unified form.

    Args:
        objective: settings.
        logp_BT: log pi(token) with gradient.
        anchor_logp_BT: log-probability under the anchor policy; a non-finite value (the sampler
            lost it) gives its token the weight 1.
        advantage_B: advantage of each sequence.
        mask_BT: True at response tokens; everything else is selected out, never multiplied out.
        coefficient_B: from `sequence_coefficients`, over the whole update.
    """
    known_BT = mask_BT & torch.isfinite(anchor_logp_BT)
    log_ratio_BT = torch.where(known_BT, logp_BT, 0.0) - torch.where(known_BT, anchor_logp_BT, 0.0)
    log_ratio_BT = log_ratio_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND)
    advantage_BT = advantage_B[:, None].expand_as(logp_BT)
    coefficient_BT = torch.where(mask_BT, coefficient_B[:, None], 0.0)
    if objective.form == "weighted":
        safe_logp_BT = torch.where(mask_BT, logp_BT, 0.0)
        return _weighted(objective, log_ratio_BT, safe_logp_BT, advantage_BT, coefficient_BT)
    if objective.form == "clipped_sequence":
        lengths_B = mask_BT.sum(dim=1, keepdim=True).clamp(min=1)
        log_ratio_BT = (log_ratio_BT.sum(dim=1, keepdim=True) / lengths_B).expand_as(logp_BT)
    return _clipped(objective, log_ratio_BT, advantage_BT, mask_BT, coefficient_BT)


def _weighted(
    objective: Objective,
    log_ratio_BT: Tensor,
    logp_BT: Tensor,
    advantage_BT: Tensor,
    coefficient_BT: Tensor,
) -> PolicyLoss:
    ratio_BT = log_ratio_BT.detach().exp()
    weight_BT = (
        ratio_BT.clamp(min=objective.weight_floor, max=objective.weight_cap)
        if (objective.weight_floor is not None or objective.weight_cap is not None)
        else ratio_BT
    )
    kept_BT = token_mask(ratio_BT, advantage_BT, objective.mask_low, objective.mask_high)
    weight_BT = torch.where(kept_BT & (coefficient_BT > 0), weight_BT, 0.0)
    loss = -(coefficient_BT * weight_BT * advantage_BT * logp_BT).sum()
    return PolicyLoss(loss, ratio_BT, weight_BT)


def _clipped(
    objective: Objective,
    log_ratio_BT: Tensor,
    advantage_BT: Tensor,
    mask_BT: Tensor,
    coefficient_BT: Tensor,
) -> PolicyLoss:
    ratio_BT = log_ratio_BT.exp()
    clipped_BT = ratio_BT.clamp(1.0 - objective.clip_low, 1.0 + objective.clip_high)
    surrogate_BT = torch.minimum(ratio_BT * advantage_BT, clipped_BT * advantage_BT)
    loss = -(coefficient_BT * surrogate_BT).sum()
    detached_BT = ratio_BT.detach()
    kept_BT = token_mask(detached_BT, advantage_BT, objective.clip_low, objective.clip_high)
    weight_BT = torch.where(kept_BT & mask_BT, detached_BT, 0.0)
    return PolicyLoss(loss, torch.where(mask_BT, detached_BT, 1.0), weight_BT)


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
