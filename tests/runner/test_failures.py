"""What happens when tasks fail: errors, retries, deadlines, exit handlers."""

import json
from pathlib import Path

import pytest
from kfp import dsl, kubernetes
from runner_parts import add, fail, light, nap, number, status_of, text


@light
def fails_until(marker: str, tries: int) -> int:
    from pathlib import Path

    path = Path(marker)
    count = int(path.read_text()) + 1 if path.exists() else 1
    path.write_text(str(count))
    print("try", count)
    if count < tries:
        raise RuntimeError(f"try {count} failed")
    return count


@light
def blocked():
    class QualityGateBlocked(Exception):
        pass

    raise QualityGateBlocked("E1 blocked: duplicates 0.4 > 0.2")


@light
def dies():
    import os

    os.kill(os.getpid(), 9)


def test_a_components_exception_is_the_error_of_task_and_run(run):
    @dsl.pipeline
    def gate():
        blocked()

    done = run(gate)
    assert done.state == "FAILED"
    assert done.result.error == "root/blocked: QualityGateBlocked: E1 blocked: duplicates 0.4 > 0.2"
    attempt = done.tasks()["blocked"].attempts[0]
    assert "Traceback" in Path(attempt.log_path).read_text()
    assert json.loads((Path(attempt.directory) / "error.json").read_text())["type"] == (
        "QualityGateBlocked"
    )


def test_independent_branches_finish_and_what_depends_on_the_failure_is_skipped(run):
    @dsl.pipeline
    def branches():
        bad = fail(message="no")
        number(value=bad.output)
        add(a=number(value=1).output, b=2)

    done = run(branches)
    tasks = done.tasks()
    assert done.state == "FAILED"
    assert tasks["number"].state == "SKIPPED"
    assert tasks["number"].reason == "upstream root/fail failed"
    assert done.output("add") == 3


def test_the_exit_task_learns_which_task_failed_and_why(run):
    @dsl.pipeline
    def guarded():
        with dsl.ExitHandler(status_of()):
            number(value=1)
            fail(message="the disk is full")

    done = run(guarded)
    assert done.state == "FAILED"
    assert done.output("status-of") == {
        "state": "FAILED",
        "task": "exit-handler-1",
        "code": 2,
        "message": "root/exit-handler-1/fail: ValueError: the disk is full",
    }


def test_the_exit_task_of_a_good_run_gets_no_error(run):
    @dsl.pipeline
    def guarded():
        with dsl.ExitHandler(status_of(), name="named handler"):
            number(value=1)

    done = run(guarded)
    assert done.state == "SUCCEEDED"
    assert done.output("status-of")["state"] == "SUCCEEDED"
    assert done.output("status-of")["message"] is None


def test_an_exit_task_without_a_status_runs_even_when_the_cache_knows_it(run):
    @dsl.pipeline
    def guarded():
        with dsl.ExitHandler(text(value="bye")):
            fail(message="no")

    first, second = run(guarded), run(guarded)
    for done in (first, second):
        assert done.output("text") == "bye"
        assert len(done.tasks()["text"].attempts) == 1
        assert done.state == "FAILED"


def test_ignore_upstream_failure_runs_the_task_and_the_run_still_fails(run):
    @dsl.pipeline
    def ignoring():
        text(value="anyway").after(fail(message="no")).ignore_upstream_failure()

    done = run(ignoring)
    assert done.state == "FAILED"
    assert done.output("text") == "anyway"


def test_a_retry_has_its_own_directory_and_log_and_waits(run, tmp_path):
    @dsl.pipeline
    def retried(marker: str):
        fails_until(marker=marker, tries=3).set_retry(3, "1s", 1.5, "5s")

    done = run(retried, {"marker": str(tmp_path / "marker")})
    attempts = done.tasks()["fails-until"].attempts
    assert done.state == "SUCCEEDED"
    assert [Path(a.log_path).read_text().split("\n")[0] for a in attempts] == [
        "try 1",
        "try 2",
        "try 3",
    ]
    assert [a.error for a in attempts] == [
        "RuntimeError: try 1 failed",
        "RuntimeError: try 2 failed",
        None,
    ]
    assert attempts[1].started_at - attempts[0].finished_at >= 1.0
    assert attempts[2].started_at - attempts[1].finished_at >= 1.5


def test_retries_run_out(run, tmp_path):
    @dsl.pipeline
    def hopeless(marker: str):
        fails_until(marker=marker, tries=9).set_retry(1)

    done = run(hopeless, {"marker": str(tmp_path / "marker")})
    assert len(done.tasks()["fails-until"].attempts) == 2
    assert done.result.error == "root/fails-until: RuntimeError: try 2 failed"


def test_a_task_past_its_deadline_is_killed(run):
    @dsl.pipeline
    def slow():
        kubernetes.set_timeout(nap(seconds=60.0), 1)

    done = run(slow)
    attempt = done.tasks()["nap"].attempts[0]
    assert done.result.error == "root/nap: timeout: did not finish within 1 s"
    assert attempt.finished_at - attempt.started_at < 10


def test_a_killed_process_is_reported_as_such(run):
    @dsl.pipeline
    def killed():
        dies()

    done = run(killed)
    assert "killed by SIGKILL" in done.result.error
    assert done.tasks()["dies"].attempts[0].exit_code == -9


def test_a_wrong_output_type_fails_the_task(run):
    @light
    def lies() -> int:
        return "three"

    @dsl.pipeline
    def wrong():
        lies()

    done = run(wrong)
    assert done.state == "FAILED"
    assert "returned value of type <class 'str'>; want type <class 'int'>" in done.result.error


def test_a_profile_that_cannot_be_imported_fails_the_task_with_the_import_error(run):
    @dsl.pipeline
    def broken():
        number(value=1).set_env_variable("LONGSTRIDE_PRELOAD", "no_such_module")

    done = run(broken)
    assert "cannot import no_such_module: ModuleNotFoundError" in done.result.error
    log = Path(done.tasks()["number"].attempts[0].log_path).read_text()
    assert "No module named 'no_such_module'" in log


@pytest.mark.parametrize("given", [{"n": "three"}, {"m": 1}, {}])
def test_wrong_pipeline_parameters_are_a_usage_error(run, given):
    from longstride.errors import UsageError

    @dsl.pipeline
    def typed(n: int):
        number(value=n)

    with pytest.raises(UsageError):
        run(typed, given)
