"""Drawing one token a row from logits, by inverse transform of given uniform numbers.

Legend: R rows, V vocabulary.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

UNIFORM_BLOCK = 64
"""Uniform numbers made at a time for one sample."""
_WORD = (1 << 64) - 1
_NUMBERS_PER_COUNT = 4


class Drawn(NamedTuple):
    """One token a row."""

    token_R: Tensor
    """Token ids, int64."""
    logp_R: Tensor
    """Log-probability under the distribution drawn from, fp32."""
    model_prob_R: Tensor
    """Probability before top-p, which the repetition rule looks at, fp32."""
    finite_R: Tensor
    """False where the logits were NaN or infinite; the row's other fields mean nothing then."""


def uniform_block(seed: int, prompt: int, sample: int, block: int) -> np.ndarray:
    """Return the uniform numbers in [0, 1) of steps [64 block, 64 (block + 1)) of one sample.

    Counter-based (Philox, Salmon et al. 2011): a function of its arguments alone, so that a sample
    does not depend on which others share its batch.
    """
    key = np.array([seed & _WORD, (prompt << 32 | sample) & _WORD], dtype=np.uint64)
    counter = block * UNIFORM_BLOCK // _NUMBERS_PER_COUNT
    return np.random.Generator(np.random.Philox(key=key, counter=counter)).random(UNIFORM_BLOCK)


def draw(logits_RV: Tensor, uniform_R: Tensor, temperature: float, top_p: float) -> Drawn:
    """Draw one token a row.

    Args:
        logits_RV: fp32 logits.
        uniform_R: fp64 numbers in [0, 1), one a row; not used when greedy.
        temperature: divides the logits; 0 takes the largest logit and reports temperature 1.
        top_p: keep the smallest set of most probable tokens whose mass reaches this; ties are
            kept in vocabulary order.
    """
    greedy = temperature == 0.0
    logp_RV = (logits_RV if greedy or temperature == 1.0 else logits_RV / temperature).log_softmax(
        -1
    )
    # log_softmax turns one NaN or +inf logit into a NaN row.
    finite_R = ~logp_RV[:, 0].isnan()
    if greedy:
        token_R1 = logp_RV.argmax(-1, keepdim=True)
        logp_R = logp_RV.gather(1, token_R1)[:, 0]
        return Drawn(token_R1[:, 0], logp_R, logp_R.exp(), finite_R)
    if top_p >= 1.0:
        token_R1 = _invert(logp_RV.exp(), uniform_R)
        logp_R = logp_RV.gather(1, token_R1)[:, 0]
        return Drawn(token_R1[:, 0], logp_R, logp_R.exp(), finite_R)
    sorted_RV, order_RV = logp_RV.sort(dim=-1, descending=True, stable=True)
    prob_RV = sorted_RV.exp()
    before_RV = prob_RV.double().cumsum(-1) - prob_RV
    prob_RV = prob_RV.masked_fill(before_RV >= top_p, 0.0)
    rank_R1 = _invert(prob_RV, uniform_R)
    model_logp_R = sorted_RV.gather(1, rank_R1)[:, 0]
    kept_R = prob_RV.double().sum(-1).log().float()
    token_R = order_RV.gather(1, rank_R1)[:, 0]
    return Drawn(token_R, model_logp_R - kept_R, model_logp_R.exp(), finite_R)


def _invert(prob_RV: Tensor, uniform_R: Tensor) -> Tensor:
    """Return the index where the cumulative distribution first exceeds uniform x total, [R, 1]."""
    cdf_RV = prob_RV.double().cumsum(-1)
    total_R1 = cdf_RV[:, -1:].contiguous()
    # Rounding must not reach the total itself: beyond it lie only tokens of probability zero.
    below_R1 = torch.nextafter(total_R1, torch.zeros_like(total_R1))
    target_R1 = torch.minimum(uniform_R[:, None] * total_R1, below_R1)
    return torch.searchsorted(cdf_RV, target_R1, right=True).clamp_max_(prob_RV.shape[1] - 1)
