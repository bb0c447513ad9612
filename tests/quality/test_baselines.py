"""Baselines are blessed by name, never by a gate itself."""

import pytest
from quality_parts import make_rollouts, write_rollouts

from longstride.errors import GateCouldNotRun, QualityGateBlocked, UsageError
from longstride.quality import baselines
from longstride.quality.gate import run_gate


def gate(parts, run_dir, rollouts=None):
    run_dir.mkdir(parents=True, exist_ok=True)
    subject = write_rollouts(run_dir / "made", rollouts or make_rollouts())
    return run_gate("E5", "rl-1", parts.recipe, subject, None, run_dir / "tasks/gate/verdict")


def test_a_first_run_has_no_baseline_and_says_so(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSTRIDE_RUN_DIR", str(tmp_path / "runs/one"))
    verdict = gate(parts, tmp_path / "runs/one")
    drift = next(check for check in verdict.checks if check.name == "reward_drift")
    assert (drift.passed, drift.observed, verdict.baseline) == (True, "not applicable", "")
    assert "no blessed run" in drift.threshold


def test_a_blessed_run_is_what_the_next_one_is_told_against(parts, tmp_path, monkeypatch):
    monkeypatch.setenv("LONGSTRIDE_RUN_DIR", str(tmp_path / "runs/one"))
    first = gate(parts, tmp_path / "runs/one")
    assert baselines.bless(tmp_path / "runs/one") == ["E5/rl-1"]
    cut = [
        r.model_copy(update={name: getattr(r, name)[:9] for name in (
            "tokens", "logprobs", "trainer_logprobs", "importance_weights")})
        for r in make_rollouts()
    ]  # fmt: skip
    monkeypatch.setenv("LONGSTRIDE_RUN_DIR", str(tmp_path / "runs/two"))
    second = gate(parts, tmp_path / "runs/two", cut)
    assert second.baseline == first.subject_digest
    assert [c.name for c in second.checks if not c.passed] == ["answer_length_drift"]
    page = (tmp_path / "runs/two/tasks/gate/verdict/report.html").read_text()
    assert "Against the last blessed run" in page


def test_blessing_twice_changes_nothing_and_old_ones_are_forgotten(parts, tmp_path):
    gate(parts, tmp_path / "runs/one")
    for _ in range(2):
        baselines.bless(tmp_path / "runs/one")
    store = tmp_path / "runs" / baselines.FOLDER
    assert [path.name for path in store.rglob("*.json")] == ["000001.json"]
    profile = baselines.read_json(next(store.rglob("*.json")), baselines.Profile)
    for number in range(20):
        baselines.add(store, profile.model_copy(update={"facts": {"rows": number}}))
    kept = sorted(path.name for path in store.rglob("*.json"))
    assert len(kept) == baselines.KEPT and kept[-1] == "000021.json"


def test_a_blocked_gate_is_never_blessed(parts, tmp_path):
    rollouts = make_rollouts()
    rollouts[0].logprobs[2] = None
    with pytest.raises(QualityGateBlocked):
        gate(parts, tmp_path / "runs/one", rollouts)
    with pytest.raises(UsageError, match="nothing to bless"):
        baselines.bless(tmp_path / "runs/one")


def test_a_baseline_that_cannot_be_read_could_not_run(parts, tmp_path, monkeypatch):
    monkeypatch.setenv(baselines.STORE_VARIABLE, str(tmp_path))
    folder = tmp_path / parts.recipe.name / "E5-rl-1"
    folder.mkdir(parents=True)
    (folder / "000001.json").write_text("{}")
    with pytest.raises(GateCouldNotRun, match="baseline cannot be used"):
        gate(parts, tmp_path / "runs/one")
