"""Fixtures of the runner's tests: compile a real pipeline with the DSL, run it on the executor."""

import subprocess
import sys
import textwrap
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import pytest

with warnings.catch_warnings():
    # kfp and its protobuf modules warn about their own future while they are imported; nothing of
    # ours is imported in here, so the suite stays strict about our own code.
    warnings.simplefilter("ignore")
    from kfp import compiler

from longstride.runner import ExecutorOptions, RunResult, TaskState, execute, load_ir, read_tasks


@dataclass
class Finished:
    """A run that has ended."""

    result: RunResult
    directory: Path

    @property
    def state(self) -> str:
        return self.result.state

    def tasks(self) -> dict[str, TaskState]:
        return {task.path.removeprefix("root/"): task for task in read_tasks(self.directory)}

    def output(self, path: str, name: str = "Output"):
        return self.tasks()[path].outputs["parameters"][name]


@pytest.fixture
def compiled(tmp_path):
    """Compile a pipeline function; returns the path of the IR."""

    def compile_pipeline(pipeline) -> Path:
        path = tmp_path / f"{pipeline.name}.yaml"
        compiler.Compiler().compile(pipeline, str(path))
        return path

    return compile_pipeline


@pytest.fixture
def run(compiled, tmp_path):
    """Compile and execute a pipeline; runs of one test share one cache."""
    count = 0

    def run_pipeline(pipeline, parameters=None, **options) -> Finished:
        nonlocal count
        count += 1
        directory = tmp_path / f"run-{count}"
        chosen = ExecutorOptions(**{"cpu_slots": 2, "poll_seconds": 0.05, **options})
        result = execute(load_ir(compiled(pipeline)), directory, parameters or {}, chosen)
        return Finished(result, directory)

    return run_pipeline


@pytest.fixture
def spawn_executor():
    """Start an executor as a process of its own; what is left is killed at the end."""
    started = []

    def spawn(ir_path: Path, directory: Path, call: str = "execute") -> subprocess.Popen:
        script = """
            import sys
            from pathlib import Path
            from longstride.runner import ExecutorOptions, execute, load_ir, resume
            ir_path, directory, call = sys.argv[1:]
            options = ExecutorOptions(cpu_slots=2, poll_seconds=0.05, grace_seconds=1.0)
            if call == "execute":
                result = execute(load_ir(Path(ir_path)), Path(directory), {}, options)
            else:
                result = resume(Path(directory), options)
            print(result.state)
        """
        process = subprocess.Popen(
            [sys.executable, "-c", textwrap.dedent(script), str(ir_path), str(directory), call],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield spawn
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def eventually():
    """Wait until a condition holds; returns its value."""

    def wait(condition, seconds: float = 20.0):
        limit = time.time() + seconds
        while not (value := condition()):
            assert time.time() < limit, "the condition never held"
            time.sleep(0.02)
        return value

    return wait
