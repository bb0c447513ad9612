"""Tasks as processes: isolation, cancellation, no orphans, big inputs."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from kfp import dsl
from runner_parts import environment_value, light, loaded_modules, nap, status_of, text

from longstride.runner import ExecutorOptions, execute, load_ir, read_run, read_tasks, stop
from longstride.runner.processes import stray_processes


@light
def describe_process() -> dict:
    import os
    import random

    return {
        "pid": os.getpid(),
        "group": os.getpgid(0),
        "session": os.getsid(0),
        "directory": os.getcwd(),
        "draw": random.random(),
        "threads": os.environ["OMP_NUM_THREADS"],
        "task": os.environ["LONGSTRIDE_TASK_PATH"],
        "progress": os.environ["LONGSTRIDE_PROGRESS_FILE"],
        "resume": os.environ["LONGSTRIDE_RESUME_DIR"],
    }


@light
def leaves_child_behind():
    import subprocess

    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)


@light
def family(seconds: float):
    import subprocess
    import time

    subprocess.Popen(["sleep", "600"])
    subprocess.Popen(["sleep", "600"], start_new_session=True)
    time.sleep(seconds)


@light
def length(value: str) -> int:
    return len(value)


@light
def talks(word: str):
    import logging
    import os
    import sys

    print("out", word)
    print("err", word, file=sys.stderr)
    logging.info("logged %s", word)
    os.system(f"echo shell {word}")


@light
def ignores_term(seconds: float):
    import signal
    import time

    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(seconds)


@dsl.pipeline
def guarded_nap():
    with dsl.ExitHandler(status_of()):
        nap(seconds=600.0)
        nap(seconds=nap(seconds=601.0).output)


def tasks_of(directory):
    return {task.path.removeprefix("root/"): task for task in read_tasks(directory)}


def running(directory):
    if not (directory / "state.sqlite").exists():
        return []
    attempts = [a for task in read_tasks(directory) for a in task.attempts]
    return [a.pid for a in attempts if a.pid and a.finished_at is None]


def test_every_task_is_a_process_of_its_own_with_its_own_place(run):
    @dsl.pipeline
    def two():
        describe_process()
        describe_process()

    done = run(two, caching=False)
    first, second = done.output("describe-process"), done.output("describe-process-2")
    assert first["pid"] == first["group"] == first["session"] != second["pid"]
    assert first["directory"].endswith("tasks/describe-process/attempt-1")
    assert first["progress"] == f"{first['directory']}/progress.json"
    assert first["resume"] == str(Path(first["directory"]).parent / "in-progress")
    assert first["task"] == "root/describe-process"
    assert first["threads"] == "1"
    attempt = done.tasks()["describe-process"].attempts[0]
    assert attempt.pid == first["pid"]
    assert attempt.cpu_seconds > 0
    assert attempt.peak_rss_bytes > 1 << 20


def test_random_state_depends_on_the_task_not_on_the_run(run):
    @light
    def draw(stream: int) -> float:
        import random

        return random.random()

    @dsl.pipeline
    def draws():
        draw(stream=1)
        draw(stream=2)

    one, two = run(draws, caching=False), run(draws, caching=False)
    assert one.output("draw") == two.output("draw") != one.output("draw-2")


def test_each_attempt_logs_everything_it_says_and_nothing_else(run):
    @dsl.pipeline
    def two():
        talks(word="a")
        talks(word="b")

    tasks = run(two).tasks()
    log = Path(tasks["talks"].attempts[0].log_path).read_text()
    assert all(f"{source} a" in log for source in ("out", "err", "logged", "shell"))
    assert " b" not in log


def test_a_parameter_of_a_megabyte_arrives(run):
    @dsl.pipeline
    def big(value: str):
        length(value=value)

    assert run(big, {"value": "x" * 2**20}).output("length") == 2**20


def test_light_tasks_do_not_see_heavy_imports_and_profiles_do(run):
    @dsl.pipeline
    def profiles():
        loaded_modules(names=["torch", "pandas", "decimal"])
        heavy = loaded_modules(names=["torch", "decimal"])
        heavy.set_env_variable("LONGSTRIDE_PRELOAD", "decimal")

    done = run(profiles)
    assert done.output("loaded-modules") == {"torch": False, "pandas": False, "decimal": False}
    assert done.output("loaded-modules-2") == {"torch": False, "decimal": True}


def test_environment_comes_from_the_pipeline_and_from_the_caller(run):
    @dsl.pipeline
    def variables():
        environment_value(name="FROM_PIPELINE").set_env_variable("FROM_PIPELINE", "p")
        environment_value(name="FROM_CALLER")

    done = run(variables, environment={"FROM_CALLER": "c"})
    assert done.output("environment-value") == "p"
    assert done.output("environment-value-2") == "c"


def test_what_a_task_leaves_running_ends_with_the_run(run):
    @dsl.pipeline
    def leaving():
        leaves_child_behind()

    done = run(leaving)
    assert done.state == "SUCCEEDED"
    assert stray_processes(done.directory) == []


def test_the_executor_itself_imports_neither_kfp_nor_torch(compiled, tmp_path):
    @dsl.pipeline
    def one():
        text(value="a")

    script = (
        "import sys; from pathlib import Path; from longstride.runner import *; "
        "r = execute(load_ir(Path(sys.argv[1])), Path(sys.argv[2]), {}, ExecutorOptions()); "
        "print(r.state, sorted({m.split('.')[0] for m in sys.modules} & {'kfp', 'torch'}))"
    )
    command = [sys.executable, "-c", script, str(compiled(one)), str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "SUCCEEDED []"


def test_kill_9_of_the_executor_leaves_no_process(compiled, tmp_path, spawn_executor, eventually):
    @dsl.pipeline
    def families():
        family(seconds=600.0)
        family(seconds=601.0)

    directory = tmp_path / "run"
    process = spawn_executor(compiled(families), directory)
    # two zygote children, two sleeps each, and the zygote
    eventually(lambda: len(stray_processes(directory)) >= 5)
    process.kill()
    process.wait()
    eventually(lambda: stray_processes(directory) == [])


@pytest.mark.parametrize("number_", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_cancels_everything_and_the_exit_task_still_runs(
    number_, compiled, tmp_path, spawn_executor, eventually
):
    directory = tmp_path / "run"
    process = spawn_executor(compiled(guarded_nap), directory)
    eventually(lambda: len(running(directory)) == 2)
    process.send_signal(number_)
    output, _ = process.communicate(timeout=30)
    tasks = tasks_of(directory)
    assert output.strip().endswith("CANCELED")
    assert tasks["exit-handler-1/nap"].state == "CANCELED"
    assert tasks["exit-handler-1/nap-3"].state == "CANCELED"
    status = tasks["status-of"].outputs["parameters"]["Output"]
    assert (status["state"], status["code"]) == ("CANCELLED", 1)
    assert read_run(directory).state == "CANCELED"
    assert stray_processes(directory) == []


def test_stop_from_another_process_cancels_even_a_task_that_ignores_sigterm(
    compiled, tmp_path, eventually
):
    @dsl.pipeline
    def stubborn():
        ignores_term(seconds=600.0)

    directory = tmp_path / "run"
    options = ExecutorOptions(cpu_slots=2, poll_seconds=0.05, grace_seconds=0.3)
    ir = load_ir(compiled(stubborn))
    results = []
    thread = threading.Thread(
        target=lambda: results.append(execute(ir, directory, {}, options)), daemon=True
    )
    thread.start()
    eventually(lambda: running(directory))
    stop(directory, reason="changed my mind", wait_seconds=20)
    thread.join(20)
    assert results[0].state == "CANCELED"
    assert tasks_of(directory)["ignores-term"].reason == "changed my mind"
    assert stray_processes(directory) == []


def test_stop_cleans_up_after_a_dead_executor(compiled, tmp_path, spawn_executor, eventually):
    directory = tmp_path / "run"
    process = spawn_executor(compiled(guarded_nap), directory)
    eventually(lambda: running(directory))
    process.kill()
    process.wait()
    stop(directory)
    assert read_run(directory).state == "CANCELED"
    assert {t.state for t in read_tasks(directory)} == {"CANCELED"}
    assert all(a.finished_at for t in read_tasks(directory) for a in t.attempts)


def test_a_fork_server_that_is_killed_is_replaced(compiled, tmp_path, eventually):
    @dsl.pipeline
    def retried():
        text(value=text(value="a").after(nap(seconds=0.8).set_retry(1)).output)

    directory = tmp_path / "run"
    ir, options = load_ir(compiled(retried)), ExecutorOptions(cpu_slots=2, poll_seconds=0.05)
    results = []
    thread = threading.Thread(target=lambda: results.append(execute(ir, directory, {}, options)))
    thread.start()
    eventually(lambda: running(directory))
    task = running(directory)[0]
    zygote = int(Path(f"/proc/{task}/stat").read_text().split(")")[1].split()[1])
    os.kill(zygote, signal.SIGKILL)
    thread.join(30)
    assert results[0].state == "SUCCEEDED"
    assert len(tasks_of(directory)["nap"].attempts) == 2
