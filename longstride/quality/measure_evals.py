"""E8: the benchmark after RL against the one before, before the report says anything."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

from longstride.errors import DataError
from longstride.quality.frame import Columns, Measured, RowFacts, RowWriter, Tally, require_rows
from longstride.quality.subject import Subject, reference_faults
from longstride.store.files import read_json, read_jsonl
from schemas.rows import EvalResult, EvalSample, Interval

CONDITIONS = (
    "prompt_set_digest",
    "samples_per_problem",
    "window",
    "temperature",
    "top_p",
    "verifier_version",
)
"""What two results must share to be compared."""

COLUMNS: Final[Columns] = {
    "id": "text",
    "family": "text",
    "level": "count",
    "length": "count",
    "unscored": "flag",
    "over_window": "count",
    "unknown_problem": "flag",
    "unfinished_correct": "flag",
}


def measure(subject: Subject, writer: RowWriter) -> Measured:
    """Measure an evaluation; the reference is the evaluation before training.

    Raises:
        DataError: A file cannot be read, or there are no samples.
        GateCouldNotRun: The reference cannot be read.
    """
    path = subject.path / "samples.jsonl"
    result = read_json(subject.path / "result.json", EvalResult)
    with reference_faults("the evaluation before"):
        before = read_json(subject.against / "result.json", EvalResult)
    tally, scores = Tally(), _Scores()
    for sample in read_jsonl(path, EvalSample):
        scores.add(sample)
        tally.flag("truncated_share", _id(sample), sample.finish_reason == "length")
        tally.flag("unjudged_share", _id(sample), sample.correct is None)
        writer.append(_row(sample, result))
    require_rows(writer.count, path, "samples")
    rows = writer.finish()
    means = scores.means()
    declared = len(result.problem_means) * result.samples_per_problem
    differing = [name for name in CONDITIONS if getattr(result, name) != getattr(before, name)]
    tally.culprits["conditions_differing"] = differing
    problems = set(result.problem_means) ^ set(before.problem_means)
    tally.culprits["unpaired_problems"] = sorted(problems)
    change = _change(before, result) if not differing else None
    summary: RowFacts = {
        "samples_ratio": rows.count / declared if declared else 0.0,
        "average": result.average.mean,
        "average_error": abs(_mean(list(result.problem_means.values())) - result.average.mean),
        "problem_errors": _problem_errors(means, result, tally),
        "interval_present": _present(result.average),
        "conditions_differing": len(differing),
        "unpaired_problems": len(problems),
        "same_checkpoint": result.checkpoint_digest == before.checkpoint_digest,
        "truncated_share": tally.share("truncated_share", rows.count),
        "unjudged_share": tally.share("unjudged_share", rows.count),
        "contaminated_problems": subject.subject.manifest.counts.get("contaminated_problems"),
        "difference": change.mean if change else None,
        "difference_low": change.low if change else None,
        "difference_high": change.high if change else None,
    }
    return Measured(rows, summary, tally.culprits)


def _id(sample: EvalSample) -> str:
    return f"{sample.prompt_id} sample {sample.sample}"


def _row(sample: EvalSample, result: EvalResult) -> RowFacts:
    return {
        "id": _id(sample),
        "family": sample.family,
        "level": sample.level,
        "length": sample.length,
        "unscored": sample.correct is None,
        "over_window": max(0, sample.length - result.window),
        "unknown_problem": sample.prompt_id not in result.problem_means,
        "unfinished_correct": sample.correct is True and sample.finish_reason != "stop",
    }


class _Scores:
    """Judged and correct samples by problem."""

    def __init__(self) -> None:
        self._judged: defaultdict[str, int] = defaultdict(int)
        self._correct: defaultdict[str, int] = defaultdict(int)

    def add(self, sample: EvalSample) -> None:
        if sample.correct is not None:
            self._judged[sample.prompt_id] += 1
            self._correct[sample.prompt_id] += sample.correct

    def means(self) -> dict[str, float]:
        return {name: self._correct[name] / count for name, count in self._judged.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _problem_errors(means: dict[str, float], result: EvalResult, tally: Tally) -> int:
    """Problems whose stated mean is not that of their samples; strangers are another check's."""
    for problem, stated in result.problem_means.items():
        counted = means.get(problem)
        agree = counted is not None and abs(stated - counted) < 1e-9
        tally.flag("problem_errors", problem, not agree)
    return tally.counts["problem_errors"]


def _present(interval: Interval) -> bool:
    return interval.low <= interval.mean <= interval.high and interval.problems >= 2


def _change(before: EvalResult, after: EvalResult) -> Interval | None:
    from longstride.evals.intervals import paired_difference

    try:
        return paired_difference(before, after)
    except DataError:
        # Fewer than two common problems: `unpaired_problems` says so and blocks.
        return None
