"""The last lines of a run: what came out, and where it is."""

from __future__ import annotations

from pathlib import Path

from longstride.errors import DataError
from longstride.evals.intervals import paired_difference
from longstride.runner import TaskState, read_run, read_tasks
from longstride.store.files import read_json
from schemas.ladder import LadderState
from schemas.rows import EvalResult, Interval


def summary_lines(run_dir: Path, state: str, error: str | None, report: str) -> list[str]:
    """Lines of the final summary."""
    tasks = [task for task in read_tasks(run_dir) if task.kind == "container"]
    run = read_run(run_dir)
    seconds = (run.finished_at or 0.0) - (run.started_at or 0.0)
    memory = max((a.peak_rss_bytes or 0 for task in tasks for a in task.attempts), default=0)
    finished = sum(task.state == "SUCCEEDED" for task in tasks)
    cached = sum(bool(task.cache_hit) for task in tasks)
    lines = ["", f"{state} after {seconds / 60:.1f} min: {finished}/{len(tasks)} tasks, {cached} "
             f"from the cache, largest task {memory / 2**20:.0f} MiB"]  # fmt: skip
    if error:
        lines.append(f"error      {error}")
    if state != "SUCCEEDED":
        lines.append(f"go on      longstride resume {run_dir}")
    lines += _benchmark_lines(tasks) + _ladder_lines(tasks)
    lines += [f"run        {run_dir}", f"report     {report}"]
    return lines


def _benchmark_lines(tasks: list[TaskState]) -> list[str]:
    results = []
    for path in _outputs(tasks, "evaluation"):
        try:
            results.append(read_json(path / "result.json", EvalResult))
        except DataError as problem:
            return [f"benchmark  {problem}"]
    lines = [f"benchmark  {r.label:6} avg@{r.samples_per_problem} {_percent(r.average)}"
             for r in results]  # fmt: skip
    if len(results) == 2:
        try:
            gain = paired_difference(results[0], results[1])
        except DataError as problem:
            return [*lines, f"gain       {problem}"]
        lines.append(f"gain       {results[1].label} over {results[0].label} {_points(gain)}")
    return lines


def _ladder_lines(tasks: list[TaskState]) -> list[str]:
    paths = _outputs(tasks, "next_ladder")
    if not paths:
        return []
    state = max(
        (read_json(path / "ladder_state.json", LadderState) for path in paths),
        key=lambda found: len(found.history),
    )
    steps = [f"{entry.window}:{entry.decision}" for entry in state.history]
    return [f"ladder     {' '.join(steps)} -> {state.window} ({state.status})"]


def _outputs(tasks: list[TaskState], name: str) -> list[Path]:
    """Directories of an output artifact over all tasks that have it, in time order."""
    found = []
    for task in sorted(tasks, key=lambda task: task.finished_at or 0.0):
        for artifact in task.outputs.get("artifacts", {}).get(name, []):
            if task.state == "SUCCEEDED":
                found.append(Path(artifact["uri"].removeprefix("file://")))
    return found


def _percent(value: Interval) -> str:
    return f"{value.mean:6.1%}  95% [{value.low:.1%}, {value.high:.1%}]"


def _points(value: Interval) -> str:
    low, high = 100 * value.low, 100 * value.high
    return f"{100 * value.mean:+.1f} points  95% [{low:+.1f}, {high:+.1f}], paired by problem"
