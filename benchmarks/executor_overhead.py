"""What a task costs apart from its own work: our executor beside kfp.local, in the same run.

Usage: python benchmarks/executor_overhead.py [--tasks N] [--repeats R] [--json FILE]

Measures, alternating between the engines so that both see the same machine:
  * a chain of trivial tasks: ours cold, ours from the cache, kfp.local without a venv;
  * tasks that import a heavy package: paid by each task, or once by a fork server;
  * that light tasks hold no torch although another task of the same run does.
Prints a table and writes JSON. Times are wall seconds; the middle one of the repeats is shown.
"""

# No postponed annotations here: kfp reads the types of components from the live objects.
import argparse
import contextlib
import io
import json
import os
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from longstride.runner import ExecutorOptions, execute, load_ir, read_tasks

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from kfp import compiler, dsl, local

IMAGE = "example.org/longstride@sha256:" + "0" * 64


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def increment(value: int) -> int:
    return value + 1


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def use_heavy(module: str, index: int) -> float:
    import importlib
    import time

    began = time.perf_counter()
    importlib.import_module(module)
    return time.perf_counter() - began


@dsl.component(base_image=IMAGE, install_kfp_package=False)
def has_module(module: str) -> bool:
    import sys

    return module in sys.modules


def chain(tasks: int) -> Any:
    """A pipeline of trivial tasks in a row."""

    @dsl.pipeline(name="overhead-chain")
    def pipeline() -> int:
        last = increment(value=0)
        for _ in range(tasks - 1):
            last = increment(value=last.output)
        return last.output

    return pipeline


def heavy(module: str, tasks: int, preload: bool) -> Any:
    """Independent tasks that each import one heavy module."""

    @dsl.pipeline(name="overhead-heavy")
    def pipeline() -> None:
        for index in range(tasks):
            task = use_heavy(module=module, index=index)
            if preload:
                task.set_env_variable("LONGSTRIDE_PRELOAD", module)

    return pipeline


def light_beside_heavy() -> Any:
    """One task in the light profile and one that asks for torch."""

    @dsl.pipeline(name="overhead-light")
    def pipeline() -> None:
        has_module(module="torch")
        has_module(module="torch").set_env_variable("LONGSTRIDE_PRELOAD", "torch")

    return pipeline


def compile_to(pipeline: Any, folder: Path) -> Path:
    """Compile a pipeline into a folder."""
    path = folder / f"{pipeline.name}-{time.monotonic_ns()}.yaml"
    compiler.Compiler().compile(pipeline, str(path))
    return path


def run_ours(ir_path: Path, folder: Path, caching: bool) -> dict[str, float]:
    """Wall seconds of one run, and the median of its tasks from start to end."""
    directory = folder / f"run-{time.monotonic_ns()}"
    options = ExecutorOptions(caching=caching, cache_dir=folder / "cache")
    began = time.perf_counter()
    result = execute(load_ir(ir_path), directory, {}, options)
    wall = time.perf_counter() - began
    if result.state != "SUCCEEDED":
        raise SystemExit(f"the benchmark run failed: {result.error}")
    done = [t for t in read_tasks(directory) if t.kind == "container"]
    spans = [(t.finished_at or 0) - (t.started_at or 0) for t in done]
    return {"wall": wall, "task_median": statistics.median(spans)}


def run_kfp_local(pipeline: Any, folder: Path) -> float:
    """Wall seconds of one run of kfp.local in subprocesses, without virtual environments."""
    runner = local.SubprocessRunner(use_venv=False)
    local.init(runner=runner, pipeline_root=str(folder / "kfp_local"))
    began = time.perf_counter()
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns about the base image, once a task
        pipeline()
    return time.perf_counter() - began


def measure_chain(tasks: int, repeats: int, folder: Path) -> dict[str, float]:
    """Seconds a task of a chain of trivial ones."""
    pipeline = chain(tasks)
    ir_path = compile_to(pipeline, folder)
    run_ours(ir_path, folder, caching=True)
    cold, cached, theirs, spans, cached_spans = [], [], [], [], []
    for _ in range(repeats):
        ours = run_ours(ir_path, folder, caching=False)
        cold.append(ours["wall"] / tasks)
        spans.append(ours["task_median"])
        theirs.append(run_kfp_local(pipeline, folder) / tasks)
        again = run_ours(ir_path, folder, caching=True)
        cached.append(again["wall"] / tasks)
        cached_spans.append(again["task_median"])
    return {
        "ours, cold, run/tasks": statistics.median(cold),
        "ours, cold, median task": statistics.median(spans),
        "ours, cached, run/tasks": statistics.median(cached),
        "ours, cached, median task": statistics.median(cached_spans),
        "kfp.local, run/tasks": statistics.median(theirs),
    }


def measure_heavy(module: str, tasks: int, repeats: int, folder: Path) -> dict[str, float]:
    """Wall seconds of a run whose tasks import a heavy package, with and without fork server."""
    paths = {kind: compile_to(heavy(module, tasks, kind), folder) for kind in (False, True)}
    walls: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(repeats):
        for preload, path in paths.items():
            walls[preload].append(run_ours(path, folder, caching=False)["wall"])
    return {
        f"{tasks} tasks, each imports {module}": statistics.median(walls[False]),
        f"{tasks} tasks, imported once": statistics.median(walls[True]),
    }


def measure_light(folder: Path) -> dict[str, bool]:
    """Whether torch is loaded in a light task and in one that asks for it."""
    directory = folder / "light"
    ir = load_ir(compile_to(light_beside_heavy(), folder))
    execute(ir, directory, {}, ExecutorOptions(caching=False))
    outputs = [t.outputs["parameters"] for t in read_tasks(directory) if t.kind == "container"]
    return {
        "torch loaded in a light task": outputs[0]["Output"],
        "torch loaded in a task that preloads it": outputs[1]["Output"],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--tasks", type=int, default=10, help="tasks in the chain")
    parser.add_argument("--heavy-tasks", type=int, default=4, help="tasks that import a package")
    parser.add_argument("--heavy-module", default="great_expectations")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--heavy-repeats", type=int, default=1)
    parser.add_argument("--json", type=Path, help="write the numbers here")
    chosen = parser.parse_args()
    # kfp.local starts `python3` from PATH; it must be this interpreter's.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        results: dict[str, Any] = {
            "cpus": os.cpu_count(),
            "chain": measure_chain(chosen.tasks, chosen.repeats, folder),
            "heavy": measure_heavy(
                chosen.heavy_module, chosen.heavy_tasks, chosen.heavy_repeats, folder
            ),
            "light": measure_light(folder),
        }
    print(f"{chosen.tasks} trivial tasks in a chain, {chosen.repeats} repeats, seconds")
    for group in ("chain", "heavy"):
        for label, value in results[group].items():
            print(f"  {label:<48} {value:8.4f}")
    for label, value in results["light"].items():
        print(f"  {label:<48} {value!s:>8}")
    if chosen.json:
        chosen.json.write_text(json.dumps(results, indent=2), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
