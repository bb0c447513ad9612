"""Swiss rounds: the best of many candidates with about log2 n rounds of comparisons (report 4.2).

Deterministic: rank by points, then Buchholz, then the candidates' own order; the best unpaired
candidate meets the next best one that it has not met. A candidate left over gets a bye. A bye can
leave two with all points who never met; then one more round is played.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

Compare = Callable[[int, int], int]
"""(candidate, other) -> -1, 0 or +1: worse, as good, better."""
_BYE_POINTS = 1.0


@dataclass(frozen=True)
class Standing:
    """How one candidate did."""

    candidate: int
    """Its index."""
    points: float
    """1 for a win and a bye, a half for a draw."""
    buchholz: float
    """Sum of the opponents' points."""
    opponents: tuple[int, ...]
    """Whom it met, in order; a bye is nobody."""


def swiss_rounds(candidates: int) -> int:
    """Rounds after which one candidate at most has won all of its games."""
    return math.ceil(math.log2(candidates)) if candidates > 1 else 0


def swiss(candidates: int, compare_round: Callable[[Sequence[tuple[int, int]]], Sequence[int]],
          rounds: int | None = None) -> list[Standing]:  # fmt: skip
    """Play a tournament; return the standings, the best first.

    No pair meets twice; when no such pairing exists the tournament ends early.

    Args:
        candidates: how many, at least 1.
        compare_round: outcomes of the games of a round, which may be played at the same time.
        rounds: how many; by default ceil(log2(candidates)), and one more where it is undecided.
    """
    if candidates < 1:
        raise ValueError(f"candidates={candidates}: a tournament needs at least 1")
    points = [0.0] * candidates
    met: list[list[int]] = [[] for _ in range(candidates)]
    had_bye: set[int] = set()
    planned = swiss_rounds(candidates) if rounds is None else rounds
    for number in range(planned + 1):
        order = [standing.candidate for standing in _ranked(points, met)]
        if number == planned and (rounds is not None or not _undecided(order, points, met)):
            break
        bye = None
        if candidates % 2:
            # The last one that had none; with enough rounds everyone has had one.
            bye = next((c for c in reversed(order) if c not in had_bye), order[-1])
            order.remove(bye)
        pairs = _pairing(order, met)
        if pairs is None:
            break
        if bye is not None:
            had_bye.add(bye)
            points[bye] += _BYE_POINTS
        for (a, b), outcome in zip(pairs, compare_round(pairs), strict=True):
            points[a] += (1 + outcome) / 2
            points[b] += (1 - outcome) / 2
            met[a].append(b)
            met[b].append(a)
    return _ranked(points, met)


def _undecided(order: Sequence[int], points: Sequence[float], met: Sequence[Sequence[int]]) -> bool:
    """Whether two candidates share the most points and never met."""
    first = order[0]
    return any(points[c] == points[first] and c not in met[first] for c in order[1:])


def _ranked(points: Sequence[float], met: Sequence[Sequence[int]]) -> list[Standing]:
    standings = [
        Standing(c, points[c], math.fsum(points[o] for o in met[c]), tuple(met[c]))
        for c in range(len(points))
    ]
    return sorted(standings, key=lambda s: (-s.points, -s.buchholz, s.candidate))


def _pairing(order: Sequence[int], met: Sequence[Sequence[int]]) -> list[tuple[int, int]] | None:
    """Pair from the top without rematches, going back where the rest cannot be paired."""
    budget = 20_000  # of steps back: beyond it the tournament ends, as if no pairing existed

    def pair(left: tuple[int, ...]) -> list[tuple[int, int]] | None:
        nonlocal budget
        if not left:
            return []
        first, rest = left[0], left[1:]
        for place, other in enumerate(rest):
            budget -= 1
            if budget < 0:
                return None
            if other in met[first]:
                continue
            below = pair(rest[:place] + rest[place + 1 :])
            if below is not None:
                return [(first, other), *below]
        return None

    return pair(tuple(order))
