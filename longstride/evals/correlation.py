"""Pearson correlations with intervals that respect clusters."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 1000
_SEED = 20250616


@dataclass(frozen=True)
class Correlation:
    """A correlation with its 95% percentile interval over resampled clusters."""

    estimate: float
    low: float
    high: float


def cluster_correlation(
    x: Sequence[float], y: Sequence[float], clusters: Sequence[Hashable]
) -> Correlation | None:
    """Pearson correlation of samples whose clusters (prompts) were drawn independently.

    The interval is a bootstrap over clusters with a fixed seed: samples of one prompt are alike, so
    that an interval over samples would be far too narrow. Resamples without spread are left out.

    Returns:
        None with fewer than three clusters, or without spread in `x` or `y`.
    """
    order = {cluster: place for place, cluster in enumerate(dict.fromkeys(clusters))}
    if len(order) < 3:
        return None
    x_N = np.asarray(x, dtype=np.float64)
    y_N = np.asarray(y, dtype=np.float64)
    if np.ptp(x_N) == 0 or np.ptp(y_N) == 0:
        return None
    # Centred first, so that the sums of squares below lose no digits.
    x_N, y_N = (x_N - x_N.mean()) / x_N.std(), (y_N - y_N.mean()) / y_N.std()
    moments_KN = np.stack([np.ones_like(x_N), x_N, y_N, x_N * x_N, y_N * y_N, x_N * y_N])
    place_N = np.array([order[cluster] for cluster in clusters])
    moments_CK = np.stack(
        [np.bincount(place_N, weights=row, minlength=len(order)) for row in moments_KN], axis=1
    )
    weights_RC = np.random.default_rng(_SEED).multinomial(
        len(order), np.full(len(order), 1.0 / len(order)), size=RESAMPLES
    )
    resampled = _pearson(weights_RC @ moments_CK)
    resampled = resampled[np.isfinite(resampled)]
    estimate = float(_pearson(moments_CK.sum(axis=0, keepdims=True))[0])
    low, high = np.percentile(resampled, [2.5, 97.5]) if len(resampled) else (-1.0, 1.0)
    return Correlation(estimate, float(low), float(high))


def _pearson(moments_RK: np.ndarray) -> np.ndarray:
    """Correlation from rows of (count, sums of x, y, xx, yy, xy); NaN without spread."""
    count, x, y, xx, yy, xy = moments_RK.T
    covariance = xy - x * y / count
    spread_x, spread_y = xx - x * x / count, yy - y * y / count
    both = spread_x * spread_y
    tiny = (spread_x <= 1e-12 * count) | (spread_y <= 1e-12 * count)
    return np.where(tiny, np.nan, covariance / np.sqrt(np.where(tiny, 1.0, both)))
