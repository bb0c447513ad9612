"""Resume: after SIGKILL at any moment, after a failure, after a stop."""

import signal
from pathlib import Path

import pytest
from kfp import dsl
from runner_parts import add, light, number, status_of, text, total

from longstride.errors import PipelineError
from longstride.runner import ExecutorOptions, read_run, read_tasks, resume
from longstride.runner.processes import stray_processes


@light
def slow_number(value: int, seconds: float = 0.4) -> int:
    import time

    time.sleep(seconds)
    return value


@light
def needs_file(path: str) -> str:
    return open(path).read()


@dsl.pipeline
def long_run():
    with dsl.ExitHandler(status_of()):
        first = slow_number(value=1)
        with dsl.ParallelFor([1, 2, 3], parallelism=2) as item:
            each = slow_number(value=item)
        summed = total(values=dsl.Collected(each.output))
        with dsl.If(first.output == 1):
            slow_number(value=add(a=summed.output, b=first.output).output)


def by_path(directory):
    return {task.path.removeprefix("root/"): task for task in read_tasks(directory)}


def finished(directory):
    if not (directory / "state.sqlite").exists():
        return 0
    return sum(t.state == "SUCCEEDED" and t.kind == "container" for t in read_tasks(directory))


@pytest.mark.parametrize("after", [0, 1, 2, 4, 5])
def test_after_kill_9_only_what_had_not_finished_runs_again(
    after, compiled, tmp_path, spawn_executor, eventually
):
    directory = tmp_path / "run"
    process = spawn_executor(compiled(long_run), directory)
    eventually(lambda: (directory / "state.sqlite").exists() and finished(directory) >= after)
    process.kill()
    process.wait()
    eventually(lambda: not stray_processes(directory))
    before = {p: t for p, t in by_path(directory).items() if t.state == "SUCCEEDED"}
    assert read_run(directory).alive is False

    result = resume(directory, ExecutorOptions(cpu_slots=2, poll_seconds=0.05))

    tasks = by_path(directory)
    assert result.state == "SUCCEEDED"
    assert tasks["exit-handler-1/total"].outputs["parameters"]["Output"] == 6
    assert tasks["exit-handler-1/condition-4/slow-number-3"].outputs["parameters"]["Output"] == 7
    for path, task in before.items():
        assert len(tasks[path].attempts) == len(task.attempts), path
    for task in tasks.values():
        assert all(a.error == "executor died" for a in task.attempts[:-1])
        assert [a.number for a in task.attempts] == list(range(1, len(task.attempts) + 1))


def test_a_task_that_finished_unnoticed_before_the_kill_is_not_run_again(
    compiled, tmp_path, spawn_executor, eventually
):
    @dsl.pipeline
    def unnoticed():
        add(a=slow_number(value=1, seconds=0.8).output, b=1)

    directory = tmp_path / "run"
    process = spawn_executor(compiled(unnoticed), directory)
    document = directory / "tasks/slow-number/attempt-1/executor_output.json"
    eventually(lambda: document.parent.exists())
    process.send_signal(signal.SIGSTOP)
    eventually(document.exists)
    process.kill()
    process.wait()
    assert resume(directory).state == "SUCCEEDED"
    tasks = by_path(directory)
    assert [(a.exit_code, a.error) for a in tasks["slow-number"].attempts] == [(0, None)]
    assert tasks["add"].outputs["parameters"]["Output"] == 2


def test_resume_of_a_failed_run_runs_the_failed_task_what_follows_and_the_exit_task(run, tmp_path):
    wanted = tmp_path / "wanted.txt"

    @dsl.pipeline
    def failing(path: str):
        with dsl.ExitHandler(status_of()):
            number(value=1)
            text(value=needs_file(path=path).output)

    done = run(failing, {"path": str(wanted)})
    assert done.state == "FAILED"
    wanted.write_text(str(wanted))
    assert resume(done.directory).state == "SUCCEEDED"
    counts = {path: len(task.attempts) for path, task in done.tasks().items()}
    assert counts["exit-handler-1/number"] == 1
    assert counts["exit-handler-1/needs-file"] == 2
    assert counts["exit-handler-1/text"] == 1
    assert done.output("status-of")["state"] == "SUCCEEDED"
    assert read_run(done.directory).sessions == 2


def test_resume_of_a_run_that_succeeded_changes_nothing(run):
    @dsl.pipeline
    def fine() -> int:
        return number(value=4).output

    done = run(fine)
    again = resume(done.directory)
    assert again == done.result
    assert len(done.tasks()["number"].attempts) == 1


def test_an_output_that_went_missing_is_made_again(run, tmp_path):
    from runner_parts import make_dataset, read_dataset

    @dsl.pipeline
    def lost(path: str):
        data = make_dataset(value=3)
        read_dataset(data=data.outputs["data"])
        needs_file(path=path)

    wanted = tmp_path / "wanted.txt"
    done = run(lost, {"path": str(wanted)}, caching=False)
    Path(done.tasks()["make-dataset"].outputs["artifacts"]["data"][0]["uri"]).unlink()
    wanted.write_text("x")
    assert resume(done.directory, ExecutorOptions(caching=False)).state == "SUCCEEDED"
    assert len(done.tasks()["make-dataset"].attempts) == 2
    assert len(done.tasks()["read-dataset"].attempts) == 2


def test_two_executors_cannot_share_a_run_directory(compiled, tmp_path, spawn_executor, eventually):
    @dsl.pipeline
    def waiting():
        slow_number(value=1, seconds=30.0)

    directory = tmp_path / "run"
    process = spawn_executor(compiled(waiting), directory)
    eventually(lambda: (directory / "state.sqlite").exists() and read_run(directory).alive)
    with pytest.raises(PipelineError, match="is being executed by another process"):
        resume(directory)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 0


def test_a_run_directory_is_never_overwritten(run, compiled):
    from longstride.runner import execute, load_ir

    @dsl.pipeline
    def fine():
        number(value=4)

    done = run(fine)
    with pytest.raises(PipelineError, match="already holds a run"):
        execute(load_ir(compiled(fine)), done.directory, {}, ExecutorOptions())


def test_a_directory_without_a_run_cannot_be_resumed(tmp_path):
    with pytest.raises(PipelineError, match="holds no run"):
        resume(tmp_path)
