"""How far a judge agrees with people, and what its favourites are worth: plain statistics."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence

import numpy as np
from pydantic import Field

from schemas.base import Contract

RESAMPLES = 1000
_SEED = 20250616

Statistic = Callable[[np.ndarray], float | None]
"""(confusion counts, people by judge) -> value; None where it is not defined."""


class Measured(Contract):
    """An estimate with its 95% percentile interval over resampled problems."""

    estimate: float
    """The estimate."""
    low: float
    """Lower end."""
    high: float
    """Upper end."""


class BestOfN(Contract):
    """What the judge's favourite of n answers is worth, beside the best there is."""

    n: int = Field(ge=1)
    """Answers to choose from."""
    selected: float
    """Chance that the judge's favourite is right."""
    any_right: float
    """pass@n: chance that any is right."""
    gap: float
    """The difference: what a perfect judge would gain."""
    problems: int
    """Problems with at least n answers."""


def accuracy(confusion_LL: np.ndarray) -> float | None:
    """Share of equal labels."""
    total = confusion_LL.sum()
    return float(np.trace(confusion_LL) / total) if total else None


def kappa(confusion_LL: np.ndarray) -> float | None:
    """Cohen's kappa: agreement beyond chance."""
    return _weighted_kappa(confusion_LL, 1.0 - np.eye(len(confusion_LL)))


def quadratic_kappa(confusion_LL: np.ndarray) -> float | None:
    """Cohen's kappa with squared distances of the labels as weights."""
    place_L = np.arange(len(confusion_LL))
    return _weighted_kappa(confusion_LL, (place_L[:, None] - place_L[None, :]).astype(float) ** 2)


def measured(
    statistic: Statistic,
    people: Sequence[int],
    judge: Sequence[int],
    problems: Sequence[Hashable],
    scale: Sequence[int],
) -> Measured | None:
    """A statistic of agreement with a bootstrap over problems, whose answers are alike.

    Returns:
        None where the statistic is not defined, for example kappa with one label only.
    """
    places = {label: place for place, label in enumerate(scale)}
    order = {problem: place for place, problem in enumerate(dict.fromkeys(problems))}
    confusion_CLL = np.zeros((len(order), len(scale), len(scale)))
    for problem, a, b in zip(problems, people, judge, strict=True):
        confusion_CLL[order[problem], places[a], places[b]] += 1
    estimate = statistic(confusion_CLL.sum(axis=0))
    if estimate is None:
        return None
    count = len(order)
    weights_RC = np.random.default_rng(_SEED).multinomial(
        count, np.full(count, 1.0 / count), size=RESAMPLES
    )
    resampled = [statistic(c) for c in np.einsum("rc,cij->rij", weights_RC, confusion_CLL)]
    defined = [value for value in resampled if value is not None]
    low, high = np.percentile(defined, [2.5, 97.5]) if defined else (estimate, estimate)
    return Measured(estimate=estimate, low=float(low), high=float(high))


def best_of_n(groups: Sequence[Sequence[tuple[float, bool]]], n: int) -> BestOfN | None:
    """Expected quality of the judge's favourite of n answers drawn without replacement.

    Exact, without drawing: of N answers, B of which the judge puts ahead of a set of T equal ones,
    the favourite is of that set with probability [C(N - B, n) - C(N - B - T, n)] / C(N, n); among
    equals each is as likely. pass@n = 1 - C(N - c, n) / C(N, n) with c right ones.

    Args:
        groups: by problem, (judged value, whether right) of each answer.
        n: answers to choose from, at least 1.

    Returns:
        None when no problem has n answers.
    """
    large = [group for group in groups if len(group) >= n]
    if not large:
        return None
    selected = math.fsum(_selected(group, n) for group in large) / len(large)
    passed = math.fsum(_any_right(group, n) for group in large) / len(large)
    return BestOfN(
        n=n, selected=selected, any_right=passed, gap=passed - selected, problems=len(large)
    )


def _selected(group: Sequence[tuple[float, bool]], n: int) -> float:
    total, ahead, parts = len(group), 0, []
    for value in sorted({value for value, _ in group}, reverse=True):
        equals = [right for other, right in group if other == value]
        chances = math.comb(total - ahead, n) - math.comb(total - ahead - len(equals), n)
        parts.append(chances * sum(equals) / len(equals))
        ahead += len(equals)
    return math.fsum(parts) / math.comb(total, n)


def _any_right(group: Sequence[tuple[float, bool]], n: int) -> float:
    wrong = sum(not right for _, right in group)
    return 1.0 - math.comb(wrong, n) / math.comb(len(group), n)


def _weighted_kappa(confusion_LL: np.ndarray, weight_LL: np.ndarray) -> float | None:
    total = confusion_LL.sum()
    if not total:
        return None
    chance_LL = np.outer(confusion_LL.sum(axis=1), confusion_LL.sum(axis=0)) / total
    expected = float((weight_LL * chance_LL).sum())
    if expected <= 0.0:
        return None
    return 1.0 - float((weight_LL * confusion_LL).sum()) / expected
