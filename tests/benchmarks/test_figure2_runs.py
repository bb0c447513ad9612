"""The whole study in a micro configuration: real processes, real training, a few steps."""

import json
import shutil

import pytest

from benchmarks.figure2 import running
from benchmarks.figure2.choosing import OWN, SHARED, choose
from benchmarks.figure2.preparing import prepare_once
from benchmarks.figure2.running import StudyError, load_result, result_path, run_all
from benchmarks.figure2.study import Job, Sizes, Study, study_jobs, tuning_jobs

MICRO = Study(
    sizes=Sizes(prompts=40, held_out=8, samples=2, batches=2),
    rates=[1e-4],
    tuning_seeds=[101],
    seeds=[1, 2],
    overrides=[
        "model.hidden_size=16", "model.num_heads=2", "model.head_dim=8", "model.num_experts=2",
        "model.block_types=[lightning, softmax]", "model.expert_hidden_size=16",
        "sft.examples=200", "sft.epochs=1", "rl.groups_per_batch=4", "rl.group_size=8",
        "rl.updates_per_batch=4",
    ],
)  # fmt: skip
CISPO = Job(algorithm="cispo", rate=1e-4, seed=1, tuning=False)
DAPO = Job(algorithm="dapo", rate=1e-4, seed=1, tuning=False)


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """The SFT checkpoint, and one run of CISPO and of DAPO."""
    work = tmp_path_factory.mktemp("figure2")
    prepare_once(MICRO.recipe(), work / "prepared")
    run_all([CISPO, DAPO], MICRO, work, 2)
    return work


@pytest.fixture
def work(finished, tmp_path):
    shutil.copytree(finished, tmp_path, dirs_exist_ok=True)
    return tmp_path


def test_a_run_leaves_its_evaluations_its_batches_and_where_it_came_from(finished):
    found = load_result(finished, MICRO, CISPO)
    assert found["checkpoint"] == running.prepared_digest(finished)
    assert [e["batch"] for e in found["evaluations"]] == [0, 1, 2]
    assert [b["batch"] for b in found["batches"]] == [0, 1]
    assert found["evaluations"][-1]["step"] == found["batches"][-1]["step"]
    assert all(0 <= e["marker_probability"] <= 1 for e in found["evaluations"])


def test_runs_of_one_seed_start_from_equal_policies_and_equal_first_samples(finished):
    cispo, dapo = (load_result(finished, MICRO, job) for job in (CISPO, DAPO))
    assert cispo["evaluations"][0] == dapo["evaluations"][0]
    same = ("accuracy", "marker", "entropy", "length", "groups")
    assert [cispo["batches"][0][k] for k in same] == [dapo["batches"][0][k] for k in same]


def test_finished_runs_are_skipped_and_missing_ones_made_again_equal(work):
    kept, lost = result_path(work, CISPO), result_path(work, DAPO)
    before, written = json.loads(lost.read_text()), kept.stat().st_mtime_ns
    lost.unlink()  # as after an interruption: a result is there complete or not at all
    run_all([CISPO, DAPO], MICRO, work, 2)
    assert kept.stat().st_mtime_ns == written
    again = json.loads(lost.read_text())
    assert {k: v for k, v in again.items() if k != "cpu_seconds"} == {
        k: v for k, v in before.items() if k != "cpu_seconds"
    }


def test_a_result_of_another_study_is_not_taken_for_this_one(finished):
    other = MICRO.model_copy(update={"overrides": [*MICRO.overrides, "rl.group_size=4"]})
    assert load_result(finished, MICRO, CISPO) is not None
    assert load_result(finished, other, CISPO) is None


def test_a_failed_run_stops_the_study_and_names_its_log(work):
    result_path(work, CISPO).unlink()
    (work / "prepared" / "tokenizer" / "tokenizer.json").unlink()
    with pytest.raises(StudyError, match=r"study-cispo-0\.0001-1\.log"):
        run_all([CISPO], MICRO, work, 1)
    assert not result_path(work, CISPO).exists()
    assert "tokenizer.json" in (work / "logs" / "study-cispo-0.0001-1.log").read_text()


def test_the_sft_checkpoint_is_made_once(finished, capsys):
    prepare_once(MICRO.recipe(), finished / "prepared")
    assert "there already" in capsys.readouterr().out


def test_rates_are_chosen_by_the_mean_accuracy_of_the_tuning_runs(work):
    study = MICRO.model_copy(update={"rates": [1e-4, 2e-4]})
    accuracy = {("grpo", 2e-4): 0.9, ("dapo", 1e-4): 0.8, ("cispo", 2e-4): 0.7}
    for job in tuning_jobs(study):
        value = accuracy.get((job.algorithm, job.rate), 0.1)
        result = {"key": job.key(study, running.prepared_digest(work)),
                  "evaluations": [{"accuracy": value}]}  # fmt: skip
        result_path(work, job).parent.mkdir(exist_ok=True)
        result_path(work, job).write_text(json.dumps(result))
    best = {"grpo": 2e-4, "dapo": 1e-4, "cispo": 2e-4}
    assert choose(study, work) == {
        OWN: best,
        SHARED["dapo"]: dict.fromkeys(best, 1e-4),
        SHARED["cispo"]: dict.fromkeys(best, 2e-4),
    }


def test_a_run_that_several_sets_of_rates_need_is_made_once():
    shared = dict.fromkeys(("grpo", "dapo", "cispo"), 1e-4)
    rates = {OWN: {**shared, "grpo": 2e-4}, **dict.fromkeys(SHARED.values(), shared)}
    names = [job.name for job in study_jobs(MICRO, rates)]
    assert len(names) == len(set(names)) == 8


def test_tuning_and_comparison_share_neither_seeds_nor_files():
    study = Study()
    assert not set(study.seeds) & set(study.tuning_seeds)
    tuned = Job(algorithm="cispo", rate=1e-4, seed=1, tuning=True)
    assert tuned.name != CISPO.name
    assert tuned.key(MICRO, "sha256:0") != CISPO.key(MICRO, "sha256:0")
