"""What an update did: weights, caps, and how well sampler and trainer agree.

Dimension suffix: N = response tokens of all sequences of a batch, concatenated.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


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


def weight_statistics(ratio_N: Tensor, advantage_N: Tensor, cap: float | None) -> dict[str, float]:
    """Distribution of importance weights and the capped share, split by the sign of A.

    A token counts as capped whichever sign its advantage has: the cap binds for both.
    """
    ratio_N = ratio_N.double()
    quantiles = torch.quantile(ratio_N, torch.tensor([0.5, 0.95, 0.99], dtype=torch.float64))
    capped_N = ratio_N > cap if cap is not None else torch.zeros_like(ratio_N, dtype=torch.bool)
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
