"""Run a recipe, kill its executor at seeded moments of its progress, resume it to its end."""

import random
import time
from dataclasses import dataclass, field
from pathlib import Path

from micro_run import RunFolder, longstride, start, wait_until

LAST_TASKS = 5
"""No kill after the start of one of these, or the run might end before it."""


@dataclass(frozen=True)
class Moment:
    """Kill `delay` seconds after the start of the `attempts`-th attempt."""

    attempts: int
    delay: float


@dataclass
class Interrupted:
    """What a run with kills left, and what was true at each kill."""

    folder: RunFolder
    code: int = 0
    output: str = ""
    finished_at_kill: list[dict[str, int]] = field(default_factory=list)
    left_behind: list[int] = field(default_factory=list)


def draw_moments(base: RunFolder, kills: int, seed: int) -> list[Moment]:
    """Distinct moments, ascending; the delay is within what the task took without a kill."""
    chance = random.Random(seed)
    started = base.attempts_started()
    seconds = {
        f"root/exit-handler-1/{name}": (task.finished_at or 0.0) - (task.started_at or 0.0)
        for name, task in base.tasks().items()
    }
    chosen = sorted(chance.sample(range(2, len(started) - LAST_TASKS), kills))
    return [Moment(n, chance.uniform(0.0, seconds.get(started[n - 1], 0.0))) for n in chosen]


def run_with_kills(recipe: object, runs: Path, moments: list[Moment]) -> Interrupted:
    """Start, kill, resume, kill, ..., resume to the end."""
    found = Interrupted(RunFolder(runs / "killed"))
    process = start("run", recipe, "--runs", runs, "--run-id", "killed", "--no-cache")
    for moment in moments:
        try:
            wait_until(lambda n=moment.attempts: len(found.folder.attempts_started()) >= n, 900)
            time.sleep(moment.delay)
            assert process.poll() is None, process.communicate()[0]
        finally:
            process.kill()
            process.communicate()
        wait_until(lambda: not found.folder.processes(), 20)
        found.finished_at_kill.append(succeeded(found.folder))
        process = start("resume", found.folder.path)
    found.output = process.communicate()[0]
    found.code = process.returncode
    found.left_behind = found.folder.processes()
    return found


def succeeded(folder: RunFolder) -> dict[str, int]:
    """Attempts of every task that had succeeded."""
    tasks = folder.tasks().items()
    return {name: len(task.attempts) for name, task in tasks if task.state == "SUCCEEDED"}


def run_without_kills(recipe: object, runs: Path) -> RunFolder:
    """The same recipe in one go."""
    done = longstride("run", recipe, "--runs", runs, "--run-id", "whole", "--no-cache")
    assert done.returncode == 0, done.stdout + done.stderr
    return RunFolder(runs / "whole")


def assert_finished_as_if_nothing_had_happened(found: Interrupted, base: RunFolder) -> None:
    """The same numbers to the last digit, and nothing done twice that had been done."""
    assert found.code == 0, found.output
    tasks = found.folder.tasks()
    assert {task.state for task in tasks.values()} == {"SUCCEEDED"}
    assert found.left_behind == []
    for finished in found.finished_at_kill:
        assert {name: len(tasks[name].attempts) for name in finished} == finished
    assert all(len(task.attempts) <= 1 + len(found.finished_at_kill) for task in tasks.values())
    assert found.folder.digests() == base.digests()
    assert found.folder.metrics() == base.metrics()


def interrupted_attempts(found: Interrupted) -> list[str]:
    """Tasks that a kill cut off."""
    return [
        name
        for name, task in found.folder.tasks().items()
        for attempt in task.attempts
        if attempt.error == "executor died"
    ]
