"""The event log: complete, append-only, and readable from another process while it grows."""

import sqlite3
import subprocess
import sys
import textwrap

import pytest
from kfp import dsl
from runner_parts import add, fail, nap, number

from longstride.errors import PipelineError
from longstride.runner import read_events, read_run, read_tasks

FOLLOWER = """
    import sys, time
    from pathlib import Path
    from longstride.runner import read_events
    directory, seen, limit = Path(sys.argv[1]), 0, time.time() + 30
    while time.time() < limit:
        if (directory / "state.sqlite").exists():
            for event in read_events(directory, after=seen):
                assert event.id == seen + 1
                seen = event.id
                print(event.task_path, event.kind, event.payload.get("state", ""), flush=True)
                if event.kind == "run" and event.payload["state"] != "RUNNING":
                    sys.exit(0)
        time.sleep(0.01)
    sys.exit(3)
"""


def test_another_process_follows_the_run_live(compiled, tmp_path, spawn_executor):
    @dsl.pipeline
    def slow():
        number(value=1).after(nap(seconds=1.0))

    directory = tmp_path / "run"
    follower = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(FOLLOWER), str(directory)],
        stdout=subprocess.PIPE,
        text=True,
    )
    executor = spawn_executor(compiled(slow), directory)
    for line in follower.stdout:
        if line.startswith("root/nap task RUNNING"):
            break
    assert executor.poll() is None, "the event arrived while the run was going on"
    rest = follower.communicate(timeout=30)[0]
    assert follower.returncode == 0
    assert "root/nap task SUCCEEDED" in rest
    assert rest.strip().endswith("run SUCCEEDED")


def test_the_log_tells_every_change_of_state_in_order(run):
    @dsl.pipeline
    def chain():
        add(a=number(value=1).output, b=1)

    events = read_events(run(chain).directory)
    states = [(e.task_path, e.payload["state"]) for e in events if e.kind in ("task", "run")]
    assert states == [
        ("", "RUNNING"),
        ("root", "RUNNING"),
        ("root/number", "RUNNING"),
        ("root/number", "SUCCEEDED"),
        ("root/add", "RUNNING"),
        ("root/add", "SUCCEEDED"),
        ("root", "SUCCEEDED"),
        ("", "SUCCEEDED"),
    ]


def test_listeners_hear_what_the_log_holds(run):
    heard = []

    @dsl.pipeline
    def failing():
        fail(message="no")

    done = run(failing, listener=heard.append)
    assert heard == read_events(done.directory)
    assert heard[-1].payload == {"state": "FAILED", "error": "root/fail: ValueError: no"}


@pytest.mark.parametrize("statement", ["DELETE FROM events", "UPDATE events SET kind = 'x'"])
def test_the_log_cannot_be_rewritten(run, statement):
    @dsl.pipeline
    def one():
        number(value=1)

    connection = sqlite3.connect(run(one).directory / "state.sqlite")
    with pytest.raises(sqlite3.IntegrityError, match="append-only"):
        connection.execute(statement)
    connection.close()


def test_tasks_are_known_as_pending_before_they_run(run):
    seen = []

    @dsl.pipeline
    def two():
        number(value=number(value=1).output)

    def listen(event):
        if event.kind == "attempt_started" and not seen:
            directory = event.payload["log"].split("/tasks/")[0]
            from pathlib import Path

            seen.extend((t.path, t.state, t.depends_on) for t in read_tasks(Path(directory)))

    run(two, listener=listen)
    assert ("root/number-2", "PENDING", ["root/number"]) in seen


def test_the_run_record_has_everything_about_the_run(run):
    @dsl.pipeline(name="recorded")
    def recorded(n: int = 2) -> int:
        return number(value=n).output

    done = run(recorded)
    state = read_run(done.directory)
    assert (state.pipeline_name, state.state, state.alive) == ("recorded", "SUCCEEDED", False)
    assert state.parameters == {"n": 2}
    assert state.outputs["parameters"] == {"Output": 2}
    assert state.created_at <= state.started_at <= state.finished_at


def test_reading_a_directory_without_a_run_says_so(tmp_path):
    with pytest.raises(PipelineError, match="holds no run"):
        read_tasks(tmp_path)
