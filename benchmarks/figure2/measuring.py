"""From result files to what the page and the plots show."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.figure2.choosing import scores
from benchmarks.figure2.running import StudyError, load_result
from benchmarks.figure2.step_ratio import Curve, Ratio, final_level, mean_and_band, step_ratio
from benchmarks.figure2.study import ALGORITHMS, AlgorithmName, Job, Study, tuning_jobs
from schemas.audit import ALL_REFLECTIONS, OTHER_TOKENS, AuditRow

Result = dict[str, Any]
Runs = dict[AlgorithmName, list[Result]]
"""Results by algorithm, in the order of the seeds."""
Rates = dict[str, dict[AlgorithmName, float]]
"""Learning rates by set of runs and algorithm."""
LEVELS = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)
"""Shares of DAPO's final level at which algorithms are timed."""
RARE = 0.5
"""The audit by round adds up the batches that began with a marker less probable than this."""
MEASURES = ("accuracy", "marker", "marker_probability", "length")


def results(study: Study, rates: Rates, work: Path, which: str) -> Runs:
    """Results of one set of rates by algorithm, in the order of the seeds.

    Raises:
        StudyError: A run is missing.
    """
    found: Runs = {}
    for name in ALGORITHMS:
        found[name] = []
        for seed in study.seeds:
            job = Job(algorithm=name, rate=rates[which][name], seed=seed, tuning=False)
            result = load_result(work, study, job)
            if result is None:
                raise StudyError(f"run {job.name} is missing; run the comparison first")
            found[name].append(result)
    return found


def curves(runs: Sequence[Result], measure: str) -> list[Curve]:
    """A measure of the evaluations, or of the batches, by seed."""
    where = "evaluations" if measure in MEASURES else "batches"
    return [[one[measure] for one in run[where]] for run in runs]


def steps_of(study: Study) -> list[float]:
    """Optimizer steps of the evaluations, the same for all runs.

    A batch with fewer sequences with signal than updates takes fewer; it still counts in full, as
    a generation batch is what costs. `missing_updates` says how often that happened.
    """
    updates = study.recipe().rl.updates_per_batch
    return [float(updates * number) for number in range(study.sizes.batches + 1)]


def missing_updates(study: Study, runs: Sequence[Result]) -> int:
    """Updates that were not taken, over all runs."""
    planned = int(steps_of(study)[-1])
    return sum(planned - run["evaluations"][-1]["step"] for run in runs)


def timings(runs: Runs, steps: Sequence[float]) -> list[dict[str, Any]]:
    """Steps to shares of DAPO's final level: CISPO and GRPO over DAPO."""
    reference = curves(runs["dapo"], "accuracy")
    rows = []
    for name in ("cispo", "grpo"):
        own = curves(runs[name], "accuracy")
        for share in LEVELS:
            to_dapo = step_ratio(own, reference, steps, share)
            rows.append(
                {
                    "algorithm": name,
                    "share": share,
                    "level": share * final_level(reference),
                    "ratio": to_dapo,
                    "of_budget": step_ratio(own, reference, steps, share, of_budget=True),
                }
            )
    return rows


def summary(runs: Runs) -> dict[AlgorithmName, dict[str, Any]]:
    """Final level and mean over the run of each algorithm, with intervals over seeds."""
    found: dict[AlgorithmName, dict[str, Any]] = {}
    for name, rs in runs.items():
        accuracy = curves(rs, "accuracy")
        found[name] = {
            "start": mean_and_band([c[0] for c in accuracy]),
            "final": mean_and_band([final_level([c]) for c in accuracy]),
            "mean": mean_and_band([sum(c) / len(c) for c in accuracy]),
            "less_dapo": mean_and_band(
                [
                    sum(c) / len(c) - sum(d) / len(d)
                    for c, d in zip(accuracy, curves(runs["dapo"], "accuracy"), strict=True)
                ]
            ),
        }
    return found


def audit_by_round(runs: Sequence[Result]) -> list[dict[str, float]]:
    """What the off-policy rounds did to reflection tokens while these were rare, over all seeds."""
    rows: dict[tuple[int, str], list[AuditRow]] = {}
    for run in runs:
        for before, batch in zip(run["evaluations"], run["batches"], strict=False):
            if before["marker_probability"] < RARE:
                for row in map(AuditRow.model_validate, batch["audit"]):
                    rows.setdefault((row.off_policy_round, row.bucket), []).append(row)
    found = []
    for number in sorted({number for number, _ in rows}):
        reflection = rows.get((number, ALL_REFLECTIONS), [])
        other = rows.get((number, OTHER_TOKENS), [])
        count = _sum(reflection, "tokens")
        pulled = _sum(reflection, "gradient") + _sum(other, "gradient")
        found.append(
            {
                "round": number,
                "tokens": count,
                "ratio": _sum(reflection, "ratio") / count if count else 1.0,
                "dropped": _sum(reflection, "ppo_dropped") / count if count else 0.0,
                "other_dropped": _sum(other, "ppo_dropped") / max(1.0, _sum(other, "tokens")),
                "capped": _sum(reflection, "capped") / count if count else 0.0,
                "gradient": _sum(reflection, "gradient") / pulled if pulled else 0.0,
                "token_share": count / max(1.0, count + _sum(other, "tokens")),
            }
        )
    return found


def _sum(rows: Iterable[AuditRow], name: str) -> float:
    return float(sum(getattr(row, name) for row in rows))


def as_json(study: Study, rates: Rates, work: Path) -> dict[str, Any]:
    """Everything that the page says and the plots draw, and where it came from."""
    by_set = {which: results(study, rates, work, which) for which in rates}
    every = [run for runs in by_set.values() for rs in runs.values() for run in rs]
    one = every[0]
    return {
        "study": study.model_dump(mode="json"),
        "rates": rates,
        "tuning": {
            name: {f"{rate:g}": round(score, 4) for rate, score in found.items()}
            for name, found in scores(study, work).items()
        },
        "checkpoint": one["checkpoint"],
        "code": sorted({run["code"] for run in every}),
        "versions": one["versions"],
        "missing_updates": missing_updates(study, every),
        "cpu_seconds": round(_cpu_seconds(study, every, work)),
        "sets": {which: _set_as_json(runs, steps_of(study)) for which, runs in by_set.items()},
    }


def _cpu_seconds(study: Study, compared: Sequence[Result], work: Path) -> float:
    """CPU seconds of all runs, tuning included; the SFT checkpoint is not in it."""
    tuned = [load_result(work, study, job) for job in tuning_jobs(study)]
    every = [*compared, *(run for run in tuned if run is not None)]
    return sum({run["key"]: run["cpu_seconds"] for run in every}.values())


def _set_as_json(runs: Runs, steps: list[float]) -> dict[str, Any]:
    return {
        "steps": steps,
        "summary": summary(runs),
        "timings": [
            {**row, "ratio": _finite(row["ratio"]), "of_budget": _finite(row["of_budget"])}
            for row in timings(runs, steps)
        ],
        "curves": {
            name: {
                measure: [[round(value, 5) for value in curve] for curve in curves(rs, measure)]
                for measure in (*MEASURES, "entropy")
            }
            for name, rs in runs.items()
        },
        "audit": {name: audit_by_round(rs) for name, rs in runs.items()},
    }


def _finite(ratio: Ratio) -> dict[str, float | None]:
    """JSON has no infinity: null stands for "not within the budget"."""
    return {name: value if value != float("inf") else None for name, value in vars(ratio).items()}
