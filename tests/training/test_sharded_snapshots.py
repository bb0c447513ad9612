"""Refused steps and snapshots in real DeepSpeed processes."""

import pytest
from rank_processes import run_program

STAGES = range(4)


@pytest.fixture(scope="module")
def facts(tmp_path_factory):
    """What the first of two ranks found; the second must have found the same."""
    first, second = run_program("snapshot_program.py", 2, tmp_path_factory.mktemp("ranks"))
    assert first == second
    return first


@pytest.mark.parametrize("stage", STAGES)
def test_a_refused_step_changes_nothing_and_is_asked_about_once(facts, stage):
    unchanged, asked, norm, skipped = facts[f"refused-{stage}"]
    assert unchanged and skipped == 0
    assert asked == f"[{norm}]" and norm > 0


@pytest.mark.parametrize("stage", STAGES)
def test_a_refused_overflow_is_left_to_whoever_refused_it(facts, stage):
    unchanged, asked, norm, skipped = facts[f"poisoned-{stage}"]
    assert unchanged and skipped == 0 and norm == 0.0
    assert asked in ("[inf]", "[nan]")


@pytest.mark.parametrize("stage", STAGES)
def test_a_snapshot_brings_weights_and_moments_back_to_the_bit(facts, stage):
    assert facts[f"restored-{stage}"]
    assert facts[f"again-{stage}"]


@pytest.mark.parametrize("stage", STAGES)
def test_a_snapshot_before_the_first_step_is_a_fresh_engine(facts, stage):
    assert facts[f"from the start-{stage}"] == facts[f"new-{stage}"]
