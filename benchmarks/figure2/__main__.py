"""`make figure2`: prepare once, tune, compare, and write docs/experiments/figure2.*.

Stop it and start it again as you like: what is finished is not done twice.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from benchmarks.figure2.choosing import choose
from benchmarks.figure2.preparing import prepare_once
from benchmarks.figure2.reporting import report
from benchmarks.figure2.running import STUDY_FILE, prepared_digest, result_path, run_all, workers
from benchmarks.figure2.study import Job, Study, study_jobs, tuning_jobs
from benchmarks.figure2.training import train
from longstride.store.files import read_json, write_json
from longstride.version import code_digest, versions

OUT = Path(__file__).parents[2] / "docs" / "experiments"


def main() -> None:
    """Run the study, or one run of it."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.figure2", description=__doc__)
    parser.add_argument("--work", type=Path, default=Path("runs/figure2"), help="results go here")
    parser.add_argument("--out", type=Path, default=OUT, help="where page, plots and figures go")
    parser.add_argument("--workers", type=int, default=workers(), help="processes at a time")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.one is not None:
        run_one(Job.model_validate_json(options.one), options.work)
        return
    study = Study()
    run_study(study, options.work, options.out, options.workers)


def run_study(study: Study, work: Path, out: Path, count: int) -> None:
    """Everything, from the SFT checkpoint to the page."""
    prepare_once(study.recipe(), work / "prepared")
    run_all(tuning_jobs(study), study, work, count)
    rates = choose(study, work)
    run_all(study_jobs(study, rates), study, work, count)
    report(study, rates, work, out)


def run_one(job: Job, work: Path) -> None:
    """One run; its result file appears when it is complete."""
    study = read_json(work / STUDY_FILE, Study)
    result = train(job.recipe(study), work / "prepared", study.sizes, tuning=job.tuning)
    about = {
        "key": job.key(study, prepared_digest(work)),
        "code": code_digest(),
        "versions": versions(),
        **job.model_dump(),
    }
    write_json(result_path(work, job), about | result)


if __name__ == "__main__":
    main()
