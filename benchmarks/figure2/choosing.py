"""The learning rates of the comparison, chosen on the tuning runs alone."""

from __future__ import annotations

from pathlib import Path
from statistics import fmean

from benchmarks.figure2.running import StudyError, load_result
from benchmarks.figure2.study import ALGORITHMS, AlgorithmName, Study, tuning_jobs

OWN = "own"
"""Set in which each algorithm has its own best rate."""
SHARED: dict[AlgorithmName, str] = {"dapo": "rate_of_dapo", "cispo": "rate_of_cispo"}
"""Sets in which all have one rate: the best one of DAPO, and the best one of CISPO."""


def scores(study: Study, work: Path) -> dict[AlgorithmName, dict[float, float]]:
    """By algorithm and rate: accuracy on the tuning problems, mean over evaluations and seeds.

    The mean over a run rewards what is fast and punishes what then falls back.
    """
    found: dict[AlgorithmName, dict[float, list[float]]] = {name: {} for name in ALGORITHMS}
    for job in tuning_jobs(study):
        result = load_result(work, study, job)
        if result is None:
            raise StudyError(f"run {job.name} is missing; run the tuning first")
        score = fmean(one["accuracy"] for one in result["evaluations"])
        found[job.algorithm].setdefault(job.rate, []).append(score)
    return {
        name: {rate: fmean(values) for rate, values in by_rate.items()}
        for name, by_rate in found.items()
    }


def choose(study: Study, work: Path) -> dict[str, dict[AlgorithmName, float]]:
    """Rates of the comparison by set of runs."""
    by_algorithm = scores(study, work)
    best = {name: max(rates, key=lambda r: rates[r]) for name, rates in by_algorithm.items()}
    shared = {SHARED[name]: dict.fromkeys(ALGORITHMS, best[name]) for name in SHARED}
    return {OWN: best, **shared}
