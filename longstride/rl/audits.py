"""What an update did: weights, caps, whose gradient it was, and how well two engines agree.

Dimension suffix: N = response tokens of all sequences of a batch, concatenated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from longstride.rl.objectives import token_mask
from schemas.audit import ALL_REFLECTIONS, OTHER_TOKENS, AuditConfig, AuditRow


@dataclass(frozen=True)
class Agreement:
    """How well the sampler's and the trainer's probabilities agree at equal weights."""

    correlation: float
    max_difference: float
    mean_difference: float
    kl_k3: float


def sampler_agreement(sampler_logp_N: Tensor, trainer_logp_N: Tensor) -> Agreement:
    """Compare probabilities of the same tokens from the sampler and from the trainer.

    The report's number is the Pearson correlation of probabilities (0.987 -> 0.997 with the FP32
    head). `kl_k3` is the mean of r - 1 - log r with r = trainer / sampler. Tokens whose sampling
    log-probability is not finite are left out. Without spread the correlation is 1 when the
    probabilities are equal and 0 otherwise; without a single known token they do not agree at all.
    """
    known_N = torch.isfinite(sampler_logp_N)
    if not bool(known_N.any()):
        return Agreement(correlation=0.0, max_difference=1.0, mean_difference=1.0, kl_k3=0.0)
    sampler_N = sampler_logp_N[known_N].double()
    trainer_N = trainer_logp_N[known_N].double()
    p_N, q_N = sampler_N.exp(), trainer_N.exp()
    difference_N = (p_N - q_N).abs()
    p_centred, q_centred = p_N - p_N.mean(), q_N - q_N.mean()
    scale = (p_centred.square().sum() * q_centred.square().sum()).sqrt()
    if float(scale) > 0:
        correlation = float((p_centred * q_centred).sum() / scale)
    else:
        correlation = 1.0 if float(difference_N.max()) < 1e-6 else 0.0
    log_r_N = trainer_N - sampler_N
    return Agreement(
        correlation=correlation,
        max_difference=float(difference_N.max()),
        mean_difference=float(difference_N.mean()),
        kl_k3=float((log_r_N.exp() - 1.0 - log_r_N).mean()),
    )


@dataclass(frozen=True)
class UpdateTokens:
    """Every response token of one update.

    Attributes:
        ratio_N: pi / pi_anchor before the cap.
        weight_N: what multiplied the gradient; 0 where nothing flowed.
        advantage_N: advantage of the token's sequence.
        coefficient_N: coefficient of the token in the loss.
        old_logp_N: log-probability before the batch's first update.
        logp_N: log-probability just before this update.
        position_N: position in the answer as a share of its length, from 0 to below 1.
        bucket_N: index of the reflection bucket that begins at the token; -1 for none.
    """

    ratio_N: Tensor
    weight_N: Tensor
    advantage_N: Tensor
    coefficient_N: Tensor
    old_logp_N: Tensor
    logp_N: Tensor
    position_N: Tensor
    bucket_N: Tensor

    @property
    def gradient_N(self) -> Tensor:
        """|coefficient x weight x A|: how hard the update pulls at each log-probability."""
        return (self.coefficient_N * self.weight_N * self.advantage_N).abs()


def weight_statistics(tokens: UpdateTokens, cap: float | None) -> dict[str, float]:
    """Distribution of importance weights and the capped share, split by the sign of A.

    A token counts as capped whichever sign its advantage has: the cap binds for both. The
    effective sample size is (sum w)^2 / sum w^2 of the ratios, as a share of the tokens.
    """
    ratio_N, advantage_N = tokens.ratio_N.double(), tokens.advantage_N
    # torch.quantile refuses more than 16M values.
    quantiles = np.quantile(ratio_N.numpy(), (0.5, 0.95, 0.99))
    capped_N = _capped(ratio_N, cap)
    size = max(1, ratio_N.numel())
    return {
        "p50": float(quantiles[0]),
        "p95": float(quantiles[1]),
        "p99": float(quantiles[2]),
        "max": float(ratio_N.max()),
        "capped_fraction": float(capped_N.sum()) / size,
        "capped_fraction_positive": float((capped_N & (advantage_N > 0)).sum()) / size,
        "capped_fraction_negative": float((capped_N & (advantage_N < 0)).sum()) / size,
        "effective_sample_size": float(ratio_N.sum().square() / ratio_N.square().sum()) / size,
    }


def gradient_shares(tokens: UpdateTokens) -> dict[str, float]:
    """Share of the gradient by third of the answer and by sign of A; nothing without gradient.

    Shares of the sum of |coefficient x weight x A|, the factor in front of grad log pi of a token.
    What the report's remedy for pattern collapse looks at: negative gradient late in answers.
    """
    gradient_N = tokens.gradient_N.double()
    total = float(gradient_N.sum())
    if total <= 0:
        return {}
    third_N = (tokens.position_N * 3).floor()
    positive_N = tokens.advantage_N > 0
    shares = {"positive": positive_N, "negative": ~positive_N}
    for index, name in enumerate(("first_third", "middle_third", "last_third")):
        shares[name] = third_N == index
        shares[f"{name}_negative"] = (third_N == index) & ~positive_N
    return {name: float(gradient_N[which].sum()) / total for name, which in shares.items()}


def bucket_rows(
    tokens: UpdateTokens,
    names: Sequence[str],
    config: AuditConfig,
    cap: float | None,
    batch: int,
    off_policy_round: int,
) -> list[AuditRow]:
    """Sums by reflection bucket, over all reflections, and over all other tokens.

    "Dropped" is the mask of eq. 7 with the clip of the configuration: what PPO or DAPO would have
    left out of this very update.
    """
    kept_N = token_mask(tokens.ratio_N, tokens.advantage_N, config.clip_low, config.clip_high)
    which = {name: tokens.bucket_N == index for index, name in enumerate(names)}
    which[ALL_REFLECTIONS] = tokens.bucket_N >= 0
    which[OTHER_TOKENS] = tokens.bucket_N < 0
    capped_N, gradient_N = _capped(tokens.ratio_N, cap), tokens.gradient_N.double()
    return [
        AuditRow(
            batch=batch,
            off_policy_round=off_policy_round,
            bucket=name,
            tokens=int(chosen_N.sum()),
            probability_old=float(tokens.old_logp_N[chosen_N].double().exp().sum()),
            probability_new=float(tokens.logp_N[chosen_N].double().exp().sum()),
            ratio=float(tokens.ratio_N[chosen_N].double().sum()),
            capped=int((capped_N & chosen_N).sum()),
            ppo_dropped=int((~kept_N & chosen_N).sum()),
            gradient=float(gradient_N[chosen_N].sum()),
            ppo_dropped_gradient=float(gradient_N[~kept_N & chosen_N].sum()),
        )
        for name, chosen_N in which.items()
        if bool(chosen_N.any())
    ]


def bucket_shares(rows: Sequence[AuditRow]) -> dict[str, float]:
    """`<bucket>/<measure>` of rows of one or several updates, added up by bucket."""
    totals: dict[str, AuditRow] = {}
    for row in rows:
        known = totals.get(row.bucket)
        totals[row.bucket] = row if known is None else _added(known, row)
    whole = sum(t.gradient for n, t in totals.items() if n in (ALL_REFLECTIONS, OTHER_TOKENS))
    everything = sum(t.tokens for n, t in totals.items() if n in (ALL_REFLECTIONS, OTHER_TOKENS))
    shares: dict[str, float] = {}
    for name, total in totals.items():
        if not total.tokens:
            continue
        shares |= {
            f"{name}/token_share": total.tokens / everything,
            f"{name}/probability": total.probability_new / total.tokens,
            f"{name}/probability_change": (total.probability_new - total.probability_old)
            / total.tokens,
            f"{name}/ratio": total.ratio / total.tokens,
            f"{name}/capped_share": total.capped / total.tokens,
            f"{name}/ppo_dropped_share": total.ppo_dropped / total.tokens,
        }
        if whole > 0:
            shares[f"{name}/gradient_share"] = total.gradient / whole
            shares[f"{name}/ppo_dropped_gradient_share"] = total.ppo_dropped_gradient / whole
    return shares


def _added(one: AuditRow, other: AuditRow) -> AuditRow:
    summed = {
        name: getattr(one, name) + getattr(other, name)
        for name in AuditRow.model_fields
        if name not in ("batch", "off_policy_round", "bucket")
    }
    return one.model_copy(update=summed)


def _capped(ratio_N: Tensor, cap: float | None) -> Tensor:
    return ratio_N > cap if cap is not None else torch.zeros_like(ratio_N, dtype=torch.bool)
