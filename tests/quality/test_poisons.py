"""Every check of every suite has a poison that makes exactly that check fail.

The table is made from the suites: a check without a poison fails the build.
"""

import poison_chat
import poison_checkpoints
import poison_documents
import poison_evals
import poison_packed
import poison_prompts
import poison_rollouts
import pytest
from poison_parts import CLEAN, Poison, bless_other, failed, verdict_on

from longstride.quality import baselines
from longstride.quality.suites import EDGES, load_suite

POISONS = {
    "E1": poison_documents.POISONS,
    "E2": poison_packed.POISONS,
    "E3": poison_chat.POISONS,
    "E4": poison_prompts.POISONS,
    "E5": poison_rollouts.POISONS,
    "E7": poison_checkpoints.POISONS,
    "E8": poison_evals.POISONS,
}
TABLE = [(edge, spec) for edge in EDGES for spec in load_suite(edge).checks]
MEASURED = [(edge, spec) for edge, spec in TABLE if spec.level != "drift"]
DRIFTING = [(edge, spec) for edge, spec in TABLE if spec.level == "drift"]


def named(case):
    return f"{case[0]}-{case[1].name}"


@pytest.mark.parametrize("edge", EDGES)
def test_every_check_of_a_suite_has_a_poison_and_no_poison_lacks_its_check(edge):
    assert POISONS[edge].keys() == {spec.name for e, spec in MEASURED if e == edge}


@pytest.mark.parametrize("edge", EDGES)
def test_clean_data_pass_every_check(edge, parts, checkpoints, tmp_path):
    assert failed(verdict_on(edge, Poison(), parts, tmp_path)) == set()


@pytest.mark.parametrize("case", MEASURED, ids=map(named, MEASURED))
def test_a_poison_fails_exactly_its_check(case, parts, checkpoints, tmp_path):
    edge, spec = case
    poison = POISONS[edge][spec.name]
    verdict = verdict_on(edge, poison, parts, tmp_path)
    assert failed(verdict) == {spec.name} | poison.also
    blocks = any(check.severity == "block" for check in verdict.checks if not check.passed)
    assert verdict.passed is not blocks
    assert spec.severity != "block" or not verdict.passed


@pytest.fixture(scope="module")
def clean_verdicts(parts, checkpoints, tmp_path_factory):
    root = tmp_path_factory.mktemp("clean")
    for edge in CLEAN:
        verdict_on(edge, Poison(), parts, root / edge)
    return root


@pytest.mark.parametrize("case", DRIFTING, ids=map(named, DRIFTING))
def test_a_number_far_from_the_last_blessed_one_warns_of_exactly_that(
    case, parts, checkpoints, clean_verdicts, tmp_path, monkeypatch
):
    edge, spec = case
    monkeypatch.setenv(baselines.STORE_VARIABLE, str(tmp_path / "store"))
    bless_other(clean_verdicts / edge / "verdict", tmp_path / "store", spec.column)
    verdict = verdict_on(edge, Poison(), parts, tmp_path)
    assert failed(verdict) == {spec.name}
    assert verdict.passed and verdict.baseline
