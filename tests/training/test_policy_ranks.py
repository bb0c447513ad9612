"""A whole RL round with DeepSpeed, in one and in two ranks, against plain torch."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_parts import tokenizer_directory

from longstride.data.tasks import problems
from longstride.model.checkpoints import load_model
from longstride.recipe.loading import load_recipe
from longstride.store.artifacts import publish
from longstride.store.files import read_jsonl, write_jsonl
from longstride.training.checkpoints import open_checkpoint
from longstride.training.engine import TorchEngine
from longstride.training.ladder import start_ladder
from longstride.training.language import initialise
from longstride.training.policy import RoundPaths, run_round
from schemas.rows import Rollout

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"
SMALL = (
    "model.hidden_size=16", "model.block_types=[lightning, softmax]", "model.num_heads=2",
    "model.num_kv_heads=1", "model.head_dim=8", "model.rotary_dim=4", "model.num_experts=2",
    "model.experts_per_token=1", "model.expert_hidden_size=16", "rl.groups_per_batch=4",
    "rl.group_size=6", "rl.max_refills=1", "rl.batches_per_round=2", "rl.updates_per_batch=3",
    "ladder.rungs=[24, 32]", "rewards.overlong_share=0.9", "rl.optimizer.eps=1.0e-8",
    "rl.learning_rate=1.0e-3",
)  # fmt: skip
ENGINES = {
    1: ("engine.kind=deepspeed", "engine.ranks=1", "engine.zero_stage=2"),
    2: ("engine.kind=deepspeed", "engine.ranks=2", "engine.zero_stage=3",
        "engine.persistent_elements=0"),
}  # fmt: skip


def recipe_with(*engine):
    cut = "engine.microbatch_tokens=128"
    rows = [f"extension.{n}.rows_per_step=8" for n in range(4)]
    return load_recipe("tiny", [*SMALL, *engine, cut, *rows], [RECIPES])


@pytest.fixture(scope="module")
def rounds(tmp_path_factory):
    """Round 1 with each engine from one start; the start likes to end its answers early."""
    folder = tmp_path_factory.mktemp("rounds")
    recipe = recipe_with()
    initialise(recipe, folder / "start")
    start_ladder(recipe, folder / "ladder")
    write_jsonl(
        folder / "prompts" / "prompts.jsonl",
        problems(recipe.tasks[0], 0, 8, seed=1, split="rl"),
    )
    publish(folder / "prompts", "prompts", "rl-prompts")
    made = {}
    for name, engine in {0: (), **ENGINES}.items():
        out = folder / f"engine-{name}"
        made[name] = RoundPaths(
            prompts=folder / "prompts", tokenizer=tokenizer_directory(),
            checkpoint=folder / "start", ladder=folder / "ladder",
            out_checkpoint=out / "checkpoint", out_rollouts=out / "rollouts",
            metrics=out / "metrics",
        )  # fmt: skip
        run_round(recipe_with(*engine), 1, made[name])
    return made


def metrics(paths):
    lines = (paths.metrics / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines]


def values(paths, name):
    return [row["value"] for row in metrics(paths) if row["name"] == name]


def first_batch(paths):
    rows = read_jsonl(paths.out_rollouts / "rollouts.jsonl", Rollout)
    return [row for row in rows if row.batch == 0]


def test_the_round_has_a_signal_and_takes_updates(rounds):
    assert len(values(rounds[0], "rl/loss")) > 3
    assert max(values(rounds[0], "rl/grad_norm")) > 0


@pytest.mark.parametrize("count", ENGINES)
def test_the_first_batch_is_sampled_and_scored_alike(rounds, count):
    ours, theirs = first_batch(rounds[count]), first_batch(rounds[0])
    assert [r.tokens for r in ours] == [r.tokens for r in theirs]
    assert [r.advantage for r in ours] == [r.advantage for r in theirs]
    for one, other in zip(ours, theirs, strict=True):
        assert one.trainer_logprobs == pytest.approx(other.trainer_logprobs, abs=1e-5)


@pytest.mark.parametrize("count", ENGINES)
def test_losses_and_norms_are_those_of_torch_as_long_as_the_batch_is_the_same(rounds, count):
    steps = 3
    for name in ("rl/loss", "rl/grad_norm", "rl/is_weight/max"):
        ours, theirs = (values(rounds[n], name)[:steps] for n in (count, 0))
        assert ours == pytest.approx(theirs, rel=1e-3, abs=1e-5), name


@pytest.mark.parametrize("count", ENGINES)
def test_each_metric_is_logged_once_a_step(rounds, count):
    keys = [(row["step"], row["name"]) for row in metrics(rounds[count]) if "loss" in row["name"]]
    assert len(keys) == len(set(keys)) > 3


@pytest.mark.parametrize("count", ENGINES)
def test_sampler_and_trainer_agree_after_updates_too(rounds, count):
    assert min(values(rounds[count], "rl/probability_correlation")) > 0.999


@pytest.mark.parametrize("count", ENGINES)
def test_the_checkpoint_with_its_moments_opens_in_torch(rounds, count):
    opened = open_checkpoint(rounds[count].out_checkpoint)
    engine = TorchEngine(opened.model, recipe_with().rl.optimizer)
    engine.load_optimizer_state(opened.optimizer_state)
    state = dict(engine.optimizer_state())
    steps = len(values(rounds[count], "rl/loss"))
    assert float(state["head.weight/step"]) == steps
    assert float(state["embed.weight/exp_avg_sq"].sum()) > 0
    start = load_model(rounds[count].checkpoint)
    assert not torch.equal(opened.model.head.weight, start.head.weight)


def test_the_next_round_goes_on_from_the_moments_of_another_engine(rounds, tmp_path):
    paths = replace(
        rounds[0], checkpoint=rounds[2].out_checkpoint, out_checkpoint=tmp_path / "checkpoint",
        out_rollouts=tmp_path / "rollouts", metrics=tmp_path / "metrics",
    )  # fmt: skip
    run_round(recipe_with(), 2, paths)
    before = load_file(rounds[2].out_checkpoint / "optimizer.safetensors")["head.weight/step"]
    after = load_file(tmp_path / "checkpoint" / "optimizer.safetensors")["head.weight/step"]
    assert float(after) == float(before) + len(values(paths, "rl/loss"))
