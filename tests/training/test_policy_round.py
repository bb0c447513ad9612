"""A round at the edges: a ladder that has ended, a batch without signal, a damaged input."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from training_parts import MODEL, tokenizer_directory

from longstride.data.tasks import problems
from longstride.errors import DataError
from longstride.recipe.loading import load_recipe
from longstride.store.artifacts import digest_of_artifact, publish
from longstride.store.files import read_json, read_jsonl, write_json, write_jsonl
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.checkpoints import read_manifest
from longstride.training.ladder import expand_ladder, start_ladder
from longstride.training.language import initialise
from longstride.training.policy import RoundPaths, run_round
from schemas.curriculum import CurriculumConfig, PassHistory
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


def test_a_round_from_which_nothing_could_be_learnt_says_why(recipe, paths, capsys):
    run_round(recipe, 1, paths)
    said = capsys.readouterr().out
    assert "0 of 2 groups carry signal after 1 waves; without: 2 all wrong" in said
    assert "round 1 took no update: of 4 groups, 4 all wrong" in said
    summary = json.loads((paths.out_rollouts / "summary.json").read_text())
    assert (summary["updates"], summary["groups_without_signal"]) == (0, {"all_wrong": 4})


def changed(recipe, **values):
    return recipe.model_copy(update={"rl": recipe.rl.model_copy(update=values)})


def test_a_run_that_shall_stop_without_signal_stops_and_says_why(recipe, paths):
    with pytest.raises(DataError, match=r"0 of 2 groups .* \(2 all wrong\), and .*exhaustion=stop"):
        run_round(changed(recipe, exhaustion="stop"), 1, paths)
    assert not paths.out_rollouts.exists()


@pytest.fixture
def noisy(recipe):
    """Rewards of a random model that differ: answers that end early are not overlong."""
    rewards = recipe.rewards.model_copy(update={"overlong_share": 0.9})
    wider = recipe.rl.model_copy(update={"group_size": 16, "exhaustion": "smaller_batch"})
    return recipe.model_copy(update={"rewards": rewards, "rl": wider})


def beside(paths):
    """Other places for the outputs of another round."""
    names = ("out_checkpoint", "out_rollouts", "metrics")
    return replace(paths, **{name: getattr(paths, name).parent / f"other-{name}" for name in names})


def updates(paths):
    lines = (paths.metrics / "metrics.jsonl").read_text().splitlines()
    return sum(json.loads(line)["name"] == "rl/loss" for line in lines)


def test_a_batch_that_is_not_full_is_left_out_when_the_recipe_says_skip(noisy, paths):
    more = changed(noisy, groups_per_batch=7)
    run_round(more, 1, paths)
    taken = updates(paths)
    elsewhere = beside(paths)
    run_round(changed(more, exhaustion="skip"), 1, elsewhere)
    summary = json.loads((elsewhere.out_rollouts / "summary.json").read_text())
    assert taken > 0
    assert 0 < summary["kept_groups"] < 14
    assert updates(elsewhere) < taken


def test_answers_cut_off_at_the_window_can_be_left_out_of_the_loss(noisy, paths):
    run_round(changed(noisy, truncated="exclude"), 1, paths)
    rollouts = list(read_jsonl(paths.out_rollouts / "rollouts.jsonl", Rollout))
    cut = [r for r in rollouts if r.finish_reason == "length" and r.advantage is not None]
    trained = [r for r in rollouts if r.importance_weights]
    assert cut and trained
    assert all(r.finish_reason != "length" for r in trained)


def test_a_round_records_the_weights_and_the_tokenizer_that_it_came_from(recipe, paths):
    run_round(recipe, 1, paths)
    parents = read_manifest(paths.out_checkpoint).parents
    assert parents["checkpoint"] == digest_of_artifact(read_manifest(paths.checkpoint))
    assert parents["tokenizer"] == Tokenizer.load(paths.tokenizer).digest


def test_what_was_solved_travels_with_the_weights_and_retires_prompts(recipe, paths):
    run_round(recipe, 1, paths)
    history = read_json(paths.out_checkpoint / "pass_history.json", PassHistory)
    assert sum(history.judged.values()) == 2 * 2 * 2
    for prompt in history.judged:
        history.passed[prompt] = history.judged[prompt]
    solved = set(history.judged)
    write_json(paths.checkpoint / "pass_history.json", history)
    retiring = changed(recipe, curriculum=CurriculumConfig(retire_pass_rate=0.9, retire_samples=1))
    following = beside(paths)
    run_round(retiring, 2, following)
    drawn = {r.prompt_id for r in read_jsonl(following.out_rollouts / "rollouts.jsonl", Rollout)}
    assert not drawn & solved
    summary = json.loads((following.out_rollouts / "summary.json").read_text())
    assert summary["retired_prompts"] == len(solved)


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
