"""What each off-policy round of a batch did to reflection tokens, from what an update leaves behind.

An update records every token's importance weight r on its rollout; with the old policy's
log-probability and the advantage, that is all an audit needs. Sums are kept, not means, so that
batches and seeds add up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from longstride.rl.objectives import Objective, sequence_coefficients, token_mask
from schemas.rows import Rollout

PPO_LOW, PPO_HIGH = 0.2, 0.28
"""The mask that tokens are held against: DAPO's, the widest of the two clipped objectives."""

Sums = dict[str, float]


def audit_round(
    minibatch: Sequence[Rollout], objective: Objective, markers: Mapping[int, str]
) -> Sums:
    """Sums over the tokens of one minibatch, right after its update.

    Keys are `<class>/<what>` with the classes `marker` and `other` and, of each: `tokens`; `up`
    (tokens with A > 0); of those, `ratio` (sum of r), `old` and `new` (sums of probabilities before
    the batch and before this update), `masked` (count beyond PPO's upper bound) and `capped`
    (count beyond the objective's cap); and over all tokens `pull` and `kept`, the sizes of their
    gradients without and with the objective's bounds.

    The size of a token's gradient is its component on the token's own logit,
    |c w A| (1 - p): w is r without bounds, and the objective's weight with them.
    """
    coefficients = sequence_coefficients(
        [len(r.tokens) for r in minibatch], [r.group for r in minibatch], objective.aggregation
    )
    ratio_N = _flat([r.importance_weights for r in minibatch])
    old_N = _flat([r.trainer_logprobs for r in minibatch]).exp()
    new_N = (old_N * ratio_N).clamp(max=1.0)
    advantage_N = _repeated([float(r.advantage or 0.0) for r in minibatch], minibatch)
    coefficient_N = _repeated(coefficients, minibatch)
    marker_N = torch.tensor([token in markers for r in minibatch for token in r.tokens])
    pull_N = coefficient_N * ratio_N * advantage_N.abs() * (1.0 - new_N)
    kept_N = coefficient_N * weight(objective, ratio_N, advantage_N) * advantage_N.abs()
    kept_N = kept_N * (1.0 - new_N)
    up_N = advantage_N > 0
    masked_N = ~token_mask(ratio_N, advantage_N, PPO_LOW, PPO_HIGH)
    capped_N = ratio_N > (objective.weight_cap or float("inf"))
    found: Sums = {}
    for name, chosen_N in (("marker", marker_N), ("other", ~marker_N)):
        raised_N = chosen_N & up_N
        values = {
            "tokens": chosen_N.sum(),
            "up": raised_N.sum(),
            "ratio": ratio_N[raised_N].sum(),
            "old": old_N[raised_N].sum(),
            "new": new_N[raised_N].sum(),
            "masked": masked_N[raised_N].sum(),
            "capped": capped_N[raised_N].sum(),
            "pull": pull_N[chosen_N].sum(),
            "kept": kept_N[chosen_N].sum(),
        }
        found |= {f"{name}/{key}": float(value) for key, value in values.items()}
    return found


def weight(objective: Objective, ratio_N: Tensor, advantage_N: Tensor) -> Tensor:
    """The factor of the gradient of log pi that an objective leaves each token."""
    if objective.form == "weighted":
        capped_N = ratio_N.clamp(min=objective.weight_floor, max=objective.weight_cap or None)
        bounds = (objective.mask_low, objective.mask_high)
    else:
        capped_N, bounds = ratio_N, (objective.clip_low, objective.clip_high)
    return torch.where(token_mask(ratio_N, advantage_N, *bounds), capped_N, 0.0)


def add(sums: Sequence[Sums]) -> Sums:
    """Sums of several rounds as one."""
    return {key: sum(one[key] for one in sums) for key in (sums[0] if sums else {})}


def _flat(values: Sequence[Sequence[float]]) -> Tensor:
    return torch.tensor([value for row in values for value in row], dtype=torch.float64)


def _repeated(values: Sequence[float], minibatch: Sequence[Rollout]) -> Tensor:
    pairs = zip(values, minibatch, strict=True)
    return torch.tensor(
        [value for value, rollout in pairs for _ in rollout.tokens], dtype=torch.float64
    )
