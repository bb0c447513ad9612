"""Runs as processes: a few at a time, finished ones skipped, interrupted ones started over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figure2.study import Job, Study
from longstride.store.artifacts import digest_of_artifact
from longstride.store.files import write_json
from longstride.training.checkpoints import read_manifest

ROOT = Path(__file__).parents[2]
STUDY_FILE = "study.json"
BYTES_EACH = 1_500_000_000
"""Memory that one run may need; measured: 0.6 GB."""


class StudyError(RuntimeError):
    """A process of the study failed."""


def workers() -> int:
    """Processes at a time: one a core, as far as memory allows."""
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return max(1, min(os.cpu_count() or 1, free // BYTES_EACH))


def prepared_digest(work: Path) -> str:
    """Digest of the SFT checkpoint that all runs start from.

    Raises:
        CheckpointError: It is not there, or damaged.
    """
    return digest_of_artifact(read_manifest(work / "prepared" / "sft"))


def result_path(work: Path, job: Job) -> Path:
    """Where the result of a run appears, complete or not at all."""
    return work / "runs" / f"{job.name}.json"


def load_result(work: Path, study: Study, job: Job) -> dict[str, Any] | None:
    """The result of a run, unless it is missing or belongs to another study or checkpoint."""
    path = result_path(work, job)
    if not path.is_file():
        return None
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found if found["key"] == job.key(study, prepared_digest(work)) else None


def run_all(jobs: Sequence[Job], study: Study, work: Path, count: int) -> None:
    """Run what is not finished, `count` processes at a time.

    Raises:
        StudyError: A process failed; names its log. The others are stopped, and what is finished
            stays.
    """
    write_json(work / STUDY_FILE, study)
    waiting = [job for job in jobs if load_result(work, study, job) is None]
    print(f"{len(jobs) - len(waiting)} of {len(jobs)} runs are there already")
    running: dict[subprocess.Popen[bytes], Job] = {}
    done = 0
    try:
        while waiting or running:
            while waiting and len(running) < count:
                job = waiting.pop(0)
                running[_start(job, work)] = job
            time.sleep(0.1)
            for process in [p for p in running if p.poll() is not None]:
                job = running.pop(process)
                if process.returncode:
                    log = work / "logs" / f"{job.name}.log"
                    raise StudyError(f"run {job.name} failed ({process.returncode}); see {log}")
                done += 1
                print(f"{job.name} done, {len(waiting) + len(running)} to go", flush=True)
    finally:
        for process in running:
            process.terminate()
            process.wait()


def _start(job: Job, work: Path) -> subprocess.Popen[bytes]:
    log = work / "logs" / f"{job.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "benchmarks.figure2", "--work", str(work.resolve())]
    with log.open("wb") as stream:
        return subprocess.Popen(
            [*command, "--one", job.model_dump_json()],
            stdout=stream,
            stderr=subprocess.STDOUT,
            cwd=ROOT,
            start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
        )
