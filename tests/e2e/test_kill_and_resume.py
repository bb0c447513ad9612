"""SIGKILL of the executor at random moments, then `longstride resume`: the numbers are the same."""

import json

import pytest
from interruptions import (
    assert_finished_as_if_nothing_had_happened,
    draw_moments,
    interrupted_attempts,
    run_with_kills,
    run_without_kills,
)
from micro_run import MICRO, longstride

SEED = 11


@pytest.fixture(scope="module")
def killed(micro, tmp_path_factory):
    moments = draw_moments(micro.folder, kills=2, seed=SEED)
    return run_with_kills(MICRO, tmp_path_factory.mktemp("killed"), moments)


def test_a_run_that_was_killed_twice_ends_with_the_same_numbers(micro, killed):
    assert_finished_as_if_nothing_had_happened(killed, micro.folder)


def test_the_benchmark_and_the_ladder_are_equal_to_the_byte(micro, killed):
    for task, output, name in (
        ("run-benchmark", "evaluation", "result.json"),
        ("run-benchmark-2", "evaluation", "result.json"),
        ("rl-round-2/expansion-gate", "next_ladder", "ladder_state.json"),
    ):
        one, other = (f.output(task, output) / name for f in (micro.folder, killed.folder))
        assert one.read_bytes() == other.read_bytes()


def test_a_kill_really_cut_something_off(killed):
    assert interrupted_attempts(killed)
    assert len(killed.finished_at_kill) == 2
    assert 0 < len(killed.finished_at_kill[0]) < len(killed.finished_at_kill[1])


def test_a_run_begun_without_the_cache_is_resumed_without_it(killed):
    assert json.loads((killed.folder.path / "run.json").read_text())["options"]["caching"] is False
    assert not any(task.cache_hit for task in killed.folder.tasks().values())
    assert not (killed.folder.path.parent / ".cache").exists()


def test_resuming_once_more_changes_nothing(killed):
    before = {name: len(task.attempts) for name, task in killed.folder.tasks().items()}
    done = longstride("resume", killed.folder.path)
    assert done.returncode == 0 and "SUCCEEDED" in done.stdout
    assert {n: len(task.attempts) for n, task in killed.folder.tasks().items()} == before


@pytest.mark.slow
@pytest.mark.timeout(7200)
def test_the_tiny_run_killed_five_times_ends_with_the_same_numbers(tmp_path):
    whole = run_without_kills("tiny", tmp_path / "whole")
    moments = draw_moments(whole, kills=5, seed=SEED)
    found = run_with_kills("tiny", tmp_path / "killed", moments)
    assert_finished_as_if_nothing_had_happened(found, whole)
    assert interrupted_attempts(found)
