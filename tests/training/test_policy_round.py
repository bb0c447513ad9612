"""A round at the edges: a ladder that has ended, a batch without signal, a damaged input."""

import json
from pathlib import Path

import pytest
from training_parts import MODEL, tokenizer_directory

from longstride.data.tasks import problems
from longstride.errors import DataError
from longstride.recipe.loading import load_recipe
from longstride.store.artifacts import digest_of_artifact, publish
from longstride.store.files import read_json, read_jsonl, write_json, write_jsonl
from longstride.training.checkpoints import read_manifest
from longstride.training.ladder import expand_ladder, start_ladder
from longstride.training.language import initialise
from longstride.training.policy import RoundPaths, run_round
from schemas.ladder import LadderState
from schemas.model import TokenizerConfig
from schemas.rows import Rollout

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


@pytest.fixture(scope="module")
def recipe():
    found = load_recipe(
        "tiny",
        ["rl.groups_per_batch=2", "rl.group_size=2", "rl.max_refills=0", "rl.batches_per_round=2",
         "rl.updates_per_batch=2", "ladder.rungs=[8, 12]"],
        [RECIPES],
    )  # fmt: skip
    model = MODEL.model_copy(update={"vocab_size": 320})
    tokenizer = TokenizerConfig(vocab_size=300)
    return found.model_copy(update={"model": model, "tokenizer": tokenizer})


@pytest.fixture
def paths(recipe, tmp_path):
    initialise(recipe, tmp_path / "start")
    start_ladder(recipe, tmp_path / "ladder")
    prompts = problems(recipe.tasks[0], 0, 8, seed=1, split="rl")
    write_jsonl(tmp_path / "prompts" / "prompts.jsonl", prompts)
    publish(tmp_path / "prompts", "prompts", "rl-prompts")
    return RoundPaths(
        prompts=tmp_path / "prompts", tokenizer=tokenizer_directory(),
        checkpoint=tmp_path / "start", ladder=tmp_path / "ladder",
        out_checkpoint=tmp_path / "after", out_rollouts=tmp_path / "rollouts",
        metrics=tmp_path / "metrics",
    )  # fmt: skip


def digest(directory):
    return digest_of_artifact(read_manifest(directory))


def test_a_batch_without_signal_changes_no_weight_and_leaves_its_rollouts_for_the_gate(
    recipe, paths
):
    final = run_round(recipe, 1, paths)
    before, after = (d / "model.safetensors" for d in (paths.checkpoint, paths.out_checkpoint))
    assert after.read_bytes() == before.read_bytes()
    rollouts = list(read_jsonl(paths.out_rollouts / "rollouts.jsonl", Rollout))
    assert len(rollouts) == 2 * 2 * 2
    assert all(r.advantage is None and len(r.tokens) <= 8 for r in rollouts)
    assert final["rl/groups/kept"] == 0
    assert final["rl/probability_correlation"] > 0.999


def test_a_round_after_the_ladder_has_ended_passes_its_checkpoint_through(recipe, paths):
    state = read_json(paths.ladder / "ladder_state.json", LadderState)
    state.status = "complete"
    write_json(paths.ladder / "ladder_state.json", state)
    publish(paths.ladder, "ladder_state", "ladder")
    assert run_round(recipe, 2, paths) == {}
    assert digest(paths.out_checkpoint) == digest(paths.checkpoint)
    assert json.loads((paths.out_rollouts / "summary.json").read_text())["passed_through"] is True
    after = expand_ladder(
        recipe, 2, paths.out_rollouts, paths.ladder, paths.out_rollouts.parent / "next"
    )
    assert (after.status, after.window) == ("complete", state.window)
    assert after.history[-1].decision == "passed_through"


def test_the_gate_reads_the_facts_that_the_round_measured(recipe, paths):
    run_round(recipe, 1, paths)
    state = expand_ladder(
        recipe, 1, paths.out_rollouts, paths.ladder, paths.out_rollouts.parent / "next"
    )
    facts = state.history[0].facts
    assert (facts.window, facts.samples) == (8, 4)
    assert facts.truncated_share == 1.0
    assert facts.length_p99 == 8


def test_a_summary_that_is_no_summary_is_refused_by_name(recipe, paths):
    run_round(recipe, 1, paths)
    write_json(paths.out_rollouts / "summary.json", {"round": 1})
    publish(paths.out_rollouts, "rollouts", "rl-1")
    with pytest.raises(DataError, match=r"summary\.json is not a summary of a round"):
        expand_ladder(recipe, 1, paths.out_rollouts, paths.ladder, paths.metrics / "next")


def test_prompts_that_changed_after_the_gate_are_refused(recipe, paths):
    with (paths.prompts / "prompts.jsonl").open("a") as stream:
        stream.write("\n")
    with pytest.raises(DataError, match=r"prompts\.jsonl has \d+ bytes"):
        run_round(recipe, 1, paths)
