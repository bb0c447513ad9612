"""A blocked run: its report, an override, resuming on a terminal, and stopping it from outside."""

import re
from dataclasses import dataclass

import pytest
from micro_run import MICRO, FinishedRun, RunFolder, longstride, wait_until
from terminals import Terminal

from longstride.runner import read_run
from longstride.store.files import read_json
from schemas.verdict import EDGE_TITLES, Override, Verdict

# No corpus cut into documents meets its mixture exactly. Training is made long enough to be looked
# at and stopped.
STRICT = ("--set", "quality.thresholds={E5/zero_spread: 1.0, E1/mixture_kl: 0.0}",
          "--set", "pretrain.tokens=3000000")  # fmt: skip
TRAIN = "language-stage/train-language"


@dataclass
class Steered:
    """One run by stages of its life."""

    blocked: FinishedRun
    blocked_verdict: Verdict
    report_of_blocked: str
    recorded: object
    terminal: str = ""
    terminal_code: int = -1
    stopped: object = None
    processes_while_training: int = 0


def verdict_of(folder):
    attempt = folder.tasks()["quality-gate"].attempts[-1]
    return read_json(folder.path / attempt.directory / "outputs/verdict/verdict.json", Verdict)


@pytest.fixture(scope="module")
def steered(tmp_path_factory):
    runs = tmp_path_factory.mktemp("steered")
    folder = RunFolder(runs / "mine")
    done = longstride("run", MICRO, *STRICT, "--runs", runs, "--run-id", "mine")
    blocked = FinishedRun(folder, done.returncode, done.stdout, done.stderr)
    found = Steered(
        blocked,
        verdict_of(folder),
        (folder.path / "report.html").read_text(encoding="utf-8"),
        longstride("override", "mine", "--runs", runs, "E1/corpus",
                   "--by", "Ada", "--reason", "a small sample"),
    )  # fmt: skip
    terminal = Terminal("resume", "mine", "--runs", runs)
    try:
        wait_until(lambda: terminal.process.poll() is not None or "steps" in terminal.output)
        found.processes_while_training = len(folder.processes())
        found.stopped = longstride("stop", "mine", "--runs", runs)
        found.terminal_code = terminal.wait(60)
    finally:
        terminal.process.kill()
    found.terminal = terminal.output
    return found


def test_a_blocked_gate_ends_the_run_with_1_and_says_which_check(steered):
    assert steered.blocked.code == 1
    assert "FAILED after" in steered.blocked.output
    assert f"E1 ({EDGE_TITLES['E1']}) blocks stage 'corpus'" in steered.blocked.output
    assert re.search(r"mixture_kl is [\d.e-]+, must be", steered.blocked.output)
    assert "longstride resume" in steered.blocked.output
    assert "Traceback" not in steered.blocked.output + steered.blocked.errors


def test_nothing_behind_a_blocked_gate_ran(steered):
    assert not steered.blocked_verdict.passed
    assert [check.name for check in steered.blocked_verdict.blocked_by] == ["mixture_kl"]
    assert "✓" not in "".join(
        line for line in steered.blocked.output.splitlines() if "pretrain" in line
    )


def test_the_report_of_a_blocked_run_names_the_check(steered):
    assert "mixture_kl" in steered.report_of_blocked
    assert "FAILED" in steered.report_of_blocked or "failed" in steered.report_of_blocked


def test_an_override_says_how_to_go_on(steered):
    assert steered.recorded.returncode == 0
    assert "now: longstride resume" in steered.recorded.stdout


def test_the_overridden_gate_passes_and_its_verdict_names_operator_and_reason(steered):
    verdict = verdict_of(steered.blocked.folder)
    assert verdict.passed
    assert verdict.override == Override(operator="Ada", reason="a small sample")
    assert [check.name for check in verdict.blocked_by] == ["mixture_kl"]


def test_what_had_finished_before_the_block_is_not_run_again(steered):
    tasks = steered.blocked.folder.tasks()
    attempts = {name: len(tasks[name].attempts) for name in ("build-corpus", "train-tokenizer")}
    assert attempts == {"build-corpus": 1, "train-tokenizer": 1}
    assert len(tasks["quality-gate"].attempts) == 2


def test_a_terminal_shows_bars_with_steps_and_time_left(steered):
    assert "\x1b[" in steered.terminal and "━" in steered.terminal
    assert re.search(r"\d+/\d+ steps  loss \d\.\d+  +\d+ s left", steered.terminal)
    assert "Traceback" not in steered.terminal


def test_stop_from_outside_cancels_the_run_and_leaves_no_process(steered):
    assert steered.processes_while_training > 0
    assert (steered.stopped.returncode, steered.stopped.stdout) == (0, "mine: CANCELED\n")
    assert steered.terminal_code == 1
    assert "CANCELED after" in steered.terminal
    assert read_run(steered.blocked.folder.path).state == "CANCELED"
    assert steered.blocked.folder.tasks()[TRAIN].state == "CANCELED"
    assert steered.blocked.folder.processes() == []


def test_the_exit_handler_still_reports_on_a_stopped_run(steered):
    handler = steered.blocked.folder.tasks()["write-report"]
    assert handler.state == "SUCCEEDED"
    page = (steered.blocked.folder.path / "report.html").read_text(encoding="utf-8")
    assert "cancel" in page.lower()


def test_a_stopped_run_is_listed_as_such_and_its_report_can_be_written(steered, tmp_path):
    runs = steered.blocked.folder.path.parent
    listed = longstride("runs", "--runs", runs).stdout
    assert re.search(r"CANCELED +mine  canceled", listed)
    assert longstride("report", "mine", "--runs", runs, "-o", tmp_path / "r").returncode == 0


def test_stopping_a_run_that_has_ended_is_no_mistake(steered):
    done = longstride("stop", steered.blocked.folder.path)
    assert (done.returncode, done.stdout) == (0, "mine: CANCELED\n")
