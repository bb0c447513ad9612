"""E8: the benchmark after RL against the one before, before the report says anything."""

from __future__ import annotations

from collections import defaultdict

from longstride.errors import DataError
from longstride.quality.frame import Measured, RowFacts, Tally, require_rows
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


def measure(subject: Subject) -> Measured:
    """Measure an evaluation; the reference is the evaluation before training.

    Raises:
        DataError: A file cannot be read, or there are no samples.
        GateCouldNotRun: The reference cannot be read.
    """
    path = subject.path / "samples.jsonl"
    samples = list(read_jsonl(path, EvalSample))
    require_rows(samples, path, "samples")
    result = read_json(subject.path / "result.json", EvalResult)
    with reference_faults("the evaluation before"):
        before = read_json(subject.against / "result.json", EvalResult)
    tally = Tally()
    means = _problem_means(samples)
    declared = len(result.problem_means) * result.samples_per_problem
    differing = [name for name in CONDITIONS if getattr(result, name) != getattr(before, name)]
    tally.culprits["conditions_differing"] = differing
    problems = set(result.problem_means) ^ set(before.problem_means)
    tally.culprits["unpaired_problems"] = sorted(problems)
    for sample in samples:
        tally.flag("truncated_share", _id(sample), sample.finish_reason == "length")
    change = _change(before, result) if not differing else None
    summary: RowFacts = {
        "samples_ratio": len(samples) / declared if declared else 0.0,
        "average_error": abs(_mean(list(means.values())) - result.average.mean),
        "problem_errors": _problem_errors(means, result, tally),
        "interval_present": _present(result.average),
        "conditions_differing": len(differing),
        "unpaired_problems": len(problems),
        "same_checkpoint": result.checkpoint_digest == before.checkpoint_digest,
        "truncated_share": tally.share("truncated_share", len(samples)),
        "unjudged_share": sum(s.correct is None for s in samples) / len(samples),
        "difference": change.mean if change else None,
        "difference_low": change.low if change else None,
        "difference_high": change.high if change else None,
    }
    return Measured(_rows(samples, result), summary, tally.culprits)


def _id(sample: EvalSample) -> str:
    return f"{sample.prompt_id} sample {sample.sample}"


def _rows(samples: list[EvalSample], result: EvalResult) -> list[RowFacts]:
    return [
        {
            "id": _id(sample),
            "unscored": sample.correct is None,
            "over_window": max(0, sample.length - result.window),
            "sample_number": sample.sample,
            "unknown_problem": sample.prompt_id not in result.problem_means,
            "unfinished_correct": sample.correct is True and sample.finish_reason != "stop",
        }
        for sample in samples
    ]


def _problem_means(samples: list[EvalSample]) -> dict[str, float]:
    values: defaultdict[str, list[float]] = defaultdict(list)
    for sample in samples:
        if sample.correct is not None:
            values[sample.prompt_id].append(float(sample.correct))
    return {problem: _mean(scores) for problem, scores in values.items()}


def _mean(values: list[float]) -> float:
    return sum(values) / len(values) if values else 0.0


def _problem_errors(means: dict[str, float], result: EvalResult, tally: Tally) -> int:
    for problem in {*means, *result.problem_means}:
        stated, counted = result.problem_means.get(problem), means.get(problem)
        agree = stated is not None and counted is not None and abs(stated - counted) < 1e-9
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
