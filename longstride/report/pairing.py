"""Whether two benchmarks can be compared, and their paired differences by family and level."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from longstride.errors import DataError
from schemas.rows import EvalResult, Interval
from schemas.run import Evaluation


@dataclass(frozen=True)
class Comparison:
    """Gains by family or `family/level`; the empty name is all problems."""

    gains: dict[str, Interval] = field(default_factory=dict)
    reason: str = ""
    """Why there are none."""


def compare(evaluations: Sequence[Evaluation]) -> Comparison | None:
    """Last against first; None when there is only one."""
    if len(evaluations) < 2:
        return None
    before, after = evaluations[0].result, evaluations[-1].result
    if set(before.problem_means) != set(after.problem_means):
        return Comparison(reason="not comparable: the two ran on different problems")
    try:
        gains = {"": _paired(before, after, set(before.problem_means))}
    except DataError as error:
        return Comparison(reason=str(error))
    for name, ids in _groups(evaluations).items():
        expected = after.by_family.get(name) or after.by_level.get(name)
        # A gain over some of a group's problems would pass for one over all of them.
        if expected is not None and len(ids) == expected.problems and len(ids) > 1:
            gains[name] = _paired(before, after, ids)
    return Comparison(gains=gains)


def _groups(evaluations: Sequence[Evaluation]) -> dict[str, set[str]]:
    """Problems by family and level, as far as the samples tell."""
    groups: dict[str, set[str]] = {}
    known = evaluations[-1].result.problem_means
    for evaluation in (evaluations[0], evaluations[-1]):
        for sample in evaluation.samples:
            if sample.prompt_id in known:
                for name in (sample.family, f"{sample.family}/{sample.level}"):
                    groups.setdefault(name, set()).add(sample.prompt_id)
    return groups


def _paired(before: EvalResult, after: EvalResult, ids: set[str]) -> Interval:
    from longstride.evals.intervals import paired_difference

    return paired_difference(
        before.model_copy(update={"problem_means": {i: before.problem_means[i] for i in ids}}),
        after.model_copy(update={"problem_means": {i: after.problem_means[i] for i in ids}}),
    )
