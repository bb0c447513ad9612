"""From single verdicts to a judgment: repeats, both orders, and how much they must agree."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import dataclass
from statistics import median_low

from longstride.rewards.generative.asking import Asker
from longstride.rewards.generative.failures import CallFailed
from longstride.rewards.generative.templates import readable, shielded
from longstride.rewards.protocol import Score

_VOTES = {"first": 1, "second": -1, "tie": 0}


@dataclass(frozen=True)
class Comparison:
    """The outcome of a pairwise judgment."""

    outcome: int
    """-1, 0 or +1: the candidate is worse than, as good as, or better than the other answer."""
    share: float
    """Share of the votes that say so; 0 when too few agreed."""
    votes: tuple[int, ...]
    """Every vote, towards the candidate: in the first place, in the second, and so on."""


def grade(asker: Asker, problem: str, reference: str, answer: str, end: float) -> Score:
    """Quality of an answer by the grade of its agreement with the reference.

    Raises:
        CallFailed: no verdict, or grades too far apart (`disagreement`).
    """
    config = asker.config.consistency
    shown = readable(answer, asker.config.limits.candidate_characters)
    if not shown:
        return Score(0.0, False, {"grade": 1.0})
    texts = {
        "problem": shielded(problem), "reference": shielded(reference), "answer": shown,
    }  # fmt: skip
    grades = sorted(
        int(asker.ask("consistency", texts, repeat, end)) for repeat in range(config.repeats)
    )
    if grades[-1] - grades[0] > config.spread:
        raise CallFailed(
            "disagreement", f"the grades of one answer reach from {grades[0]} to {grades[-1]}"
        )
    agreed = median_low(grades)
    return Score(
        config.values[agreed - 1], agreed >= config.correct_grade, {"grade": float(agreed)}
    )


def compare(asker: Asker, problem: str, candidate: str, other: str, end: float) -> Comparison:
    """Compare two answers blindly, in both orders, several times.

    An outcome counts when at least `pairwise.agreement` of all votes say it. Asking ends early when
    no outcome can reach that any more. Equal texts are a tie without being asked.

    Raises:
        CallFailed: no verdict, or too little agreement where the recipe makes that `not_judged`.
    """
    config, limits = asker.config.pairwise, asker.config.limits
    shown = readable(candidate, limits.candidate_characters)
    reference = readable(other, limits.candidate_characters)
    if shown == reference or not shown or not reference:
        return Comparison(bool(shown) - bool(reference), 1.0, ())
    total, votes = 2 * config.repeats, []
    for place in range(total):
        votes.append(_vote(asker, problem, (shown, reference), place, end))
        most = Counter(votes).most_common(1)[0][1]
        if most + total - len(votes) < _needed(config.agreement, total):
            break
    outcome, count = Counter(votes).most_common(1)[0]
    agreed = count >= _needed(config.agreement, total)
    asker.counters.add("compared")
    asker.counters.add("agreed", int(agreed))
    if agreed:
        return Comparison(outcome, count / total, tuple(votes))
    if config.disagreement == "not_judged":
        raise CallFailed("disagreement", f"the votes of one comparison are {votes}")
    return Comparison(0, 0.0, tuple(votes))


def compare_with_reference(
    asker: Asker, problem: str, reference: str, answer: str, end: float
) -> Score:
    """Quality of an answer beside the reference: 0 worse, a half as good, 1 better.

    Raises:
        CallFailed: as `compare`.
    """
    found = compare(asker, problem, answer, reference, end)
    least = 0 if asker.config.pairwise.correct == "not_worse" else 1
    # An agreed tie is as good; a tie for want of agreement says nothing that could count as right.
    correct = found.outcome >= least and found.share > 0.0
    return Score(
        (found.outcome + 1) / 2, correct, {"outcome": float(found.outcome), "share": found.share}
    )


def deadline(asker: Asker) -> float:
    """When a submission that begins now is given up, by `time.monotonic()`."""
    return time.monotonic() + asker.config.limits.submission_seconds


def _vote(asker: Asker, problem: str, pair: tuple[str, str], place: int, end: float) -> int:
    """One vote towards the first of the pair; places alternate between the two orders."""
    swapped = place % 2 == 1
    first, second = pair[::-1] if swapped else pair
    texts = {"problem": shielded(problem), "first": first, "second": second}
    vote = _VOTES[str(asker.ask("pairwise", texts, place // 2, end))]
    asker.counters.add("decided_votes", abs(vote))
    asker.counters.add("first_won", int(vote == 1))
    return -vote if swapped else vote


def _needed(agreement: float, total: int) -> int:
    """Votes that an outcome needs: a share of all, and more than half of them."""
    least = next(n for n in range(1, total + 1) if n >= agreement * total - 1e-9)
    return max(least, total // 2 + 1)
