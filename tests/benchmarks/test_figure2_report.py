"""Page and plots from result files whose outcome is known."""

import json

import pytest

from benchmarks.figure2.choosing import OWN, SHARED
from benchmarks.figure2.measuring import audit_by_round, missing_updates
from benchmarks.figure2.reporting import report
from benchmarks.figure2.running import load_result, prepared_digest, result_path
from benchmarks.figure2.study import ALGORITHMS, Sizes, Study, study_jobs, tuning_jobs
from longstride.model.hybrid import HybridModel
from longstride.store.files import write_json
from longstride.training.checkpoints import publish_checkpoint

STUDY = Study(sizes=Sizes(batches=20), rates=[1e-4, 2e-4], seeds=[1, 2, 3])
RATES = {which: dict.fromkeys(ALGORITHMS, 1e-4) for which in (OWN, *SHARED.values())}
BATCHES_TO_TOP = {"cispo": 5, "dapo": 10, "grpo": 15}


def audit_row(number, bucket, tokens, ratio, dropped):
    return {"batch": 0, "off_policy_round": number, "bucket": bucket, "tokens": tokens,
            "probability_old": 0.1, "probability_new": 0.1, "ratio": ratio, "capped": 0,
            "ppo_dropped": dropped, "gradient": 1.0 * tokens,
            "ppo_dropped_gradient": 0.0}  # fmt: skip


def result(job, key):
    """A straight line to 0.9, in as many batches as the algorithm takes."""
    share = [min(1.0, n / BATCHES_TO_TOP[job.algorithm]) for n in range(21)]
    audit = [audit_row(n, "reflection", 2, 3.0, 1) for n in range(1, 17)]
    audit += [audit_row(n, "other", 8, 8.0, 0) for n in range(1, 17)]
    return {
        "key": key, "checkpoint": "sha256:0", "code": "sha256:1", "versions": {"torch": "2"},
        "cpu_seconds": 60.0,
        "evaluations": [
            {"batch": n, "step": 16 * n, "accuracy": 0.9 * s, "marker": s, "length": 10.0,
             "marker_probability": s}
            for n, s in enumerate(share)
        ],
        "batches": [{"batch": n, "entropy": 0.1, "audit": audit} for n in range(20)],
    }  # fmt: skip


@pytest.fixture
def work(tmp_path):
    model = HybridModel(STUDY.recipe(["model.hidden_size=16"]).model)
    model.initialise(0)
    publish_checkpoint(
        model, tmp_path / "prepared" / "sft", stage="sft", step=1, tokens_seen=1,
        recipe_digest="", parents={}, metrics={},
    )  # fmt: skip
    for job in [*tuning_jobs(STUDY), *study_jobs(STUDY, RATES)]:
        key = job.key(STUDY, prepared_digest(tmp_path))
        write_json(result_path(tmp_path, job), result(job, key))
    return tmp_path


def test_the_page_gives_the_ratio_that_the_curves_have(work, tmp_path):
    report(STUDY, RATES, work, tmp_path / "out")
    figures = json.loads((tmp_path / "out" / "figure2.json").read_text())
    rows = {(r["algorithm"], r["share"]): r for r in figures["sets"][OWN]["timings"]}
    for share in (0.5, 0.9, 1.0):
        assert rows["cispo", share]["ratio"]["value"] == pytest.approx(0.5)
        assert rows["grpo", share]["ratio"]["value"] == pytest.approx(1.5)
    assert rows["cispo", 1.0]["of_budget"]["value"] == pytest.approx(0.25)
    page = (tmp_path / "out" / "figure2.md").read_text()
    assert "0.50 [0.50, 0.50]" in page
    assert "1.50 [1.50, 1.50]" in page


def test_equal_results_give_equal_files(work, tmp_path):
    for name in ("a", "b"):
        report(STUDY, RATES, work, tmp_path / name)
    for file in ("figure2.md", "figure2.json", "figure2.svg", "figure2-audit.svg"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()


def test_the_audit_adds_up_the_batches_that_began_with_rare_reflections(work):
    job = next(j for j in study_jobs(STUDY, RATES) if j.algorithm == "dapo")
    rows = audit_by_round([load_result(work, STUDY, job)])
    assert [row["round"] for row in rows] == list(range(1, 17))
    # DAPO's reflections are below one half before batches 0 to 4: five batches of two tokens.
    assert rows[0]["tokens"] == 10
    assert rows[0]["ratio"] == pytest.approx(1.5)
    assert rows[0]["dropped"] == pytest.approx(0.5)
    assert rows[0]["gradient"] == pytest.approx(0.2)


def test_updates_that_were_not_taken_are_counted(work):
    found = load_result(work, STUDY, study_jobs(STUDY, RATES)[0])
    assert missing_updates(STUDY, [found]) == 0
    found["evaluations"][-1]["step"] -= 3
    assert missing_updates(STUDY, [found]) == 3
