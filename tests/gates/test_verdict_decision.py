"""Checks -> verdict."""

import pytest

from longstride.errors import GateCouldNotRun
from longstride.gates.verdict import decide
from schemas.verdict import Check, Override


def check(name="a", severity="block", passed=True):
    return Check(
        name=name,
        description="a fact",
        severity=severity,
        passed=passed,
        observed=1.0,
        threshold="<= 2",
    )


def verdict(*checks, **more):
    return decide("E1", "corpus", checks, rows=3, suite_digest="s", subject_digest="d", **more)


def test_all_checks_passed_is_a_pass():
    assert verdict(check(), check("b", "warn")).passed


def test_a_failed_block_blocks_and_is_named():
    found = verdict(check(), check("b", passed=False))
    assert not found.passed
    assert [c.name for c in found.blocked_by] == ["b"]


@pytest.mark.parametrize("severity", ["warn", "info"])
def test_lesser_severities_never_block(severity):
    assert verdict(check(severity=severity, passed=False)).passed


def test_an_override_lets_a_blocked_gate_pass_and_is_recorded():
    override = Override(operator="ada", reason="known source")
    found = verdict(check(passed=False), override=override)
    assert found.passed
    assert found.override == override
    assert found.blocked_by, "what was overridden stays visible"


def test_an_override_that_changes_nothing_is_not_recorded():
    assert verdict(check(), override=Override(operator="ada", reason="in case")).override is None


def test_nothing_measured_is_no_pass():
    with pytest.raises(GateCouldNotRun, match="measured nothing"):
        verdict()


def test_a_note_explains_why_there_is_nothing_to_measure():
    assert verdict(note="passed through").passed


def test_two_checks_of_one_name_are_refused():
    with pytest.raises(GateCouldNotRun, match=r"\['a'\] more than once"):
        verdict(check(), check(passed=False))
