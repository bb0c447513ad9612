"""An RL round whose rollouts come from vLLM: the real path, from recipe to published checkpoint."""

import json
from itertools import groupby
from pathlib import Path

import pytest

from longstride.data.tasks import problems
from longstride.errors import CheckpointError
from longstride.recipe.loading import load_recipe
from longstride.rollout import vllm as vllm_module
from longstride.store.artifacts import publish
from longstride.store.files import read_jsonl, write_jsonl
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.benchmarking import benchmark_checkpoint
from longstride.training.ladder import start_ladder
from longstride.training.language import initialise
from longstride.training.policy import RoundPaths, run_round
from schemas.model import TokenizerConfig
from schemas.recipe import Recipe
from schemas.rows import Rollout

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"
UPDATES = 4
DENSE = [
    "model.vocab_size=320", "model.hidden_size=64", "model.block_types=[softmax, softmax]",
    "model.num_heads=2", "model.num_kv_heads=1", "model.head_dim=32", "model.rotary_dim=32",
    "model.num_experts=1", "model.experts_per_token=1", "model.residual=prenorm",
    "model.init_std=0.05", "tokenizer.vocab_size=300",
]  # fmt: skip
# An untrained policy ends by chance; the length penalty alone tells its samples apart.
SHORT = [
    "rl.group_size=8", "rl.max_refills=1", "rl.learning_rate=1e-3",
    f"rl.updates_per_batch={UPDATES}", "ladder.rungs=[40, 48]", "rewards.overlong_share=0.9",
]  # fmt: skip


def recipe_with(generator: dict[str, object], groups: int, batches: int) -> Recipe:
    chosen = [
        f"rollout.generator={json.dumps(generator)}",
        f"rl.groups_per_batch={groups}",
        f"rl.batches_per_round={batches}",
    ]
    return load_recipe("tiny", [*DENSE, *SHORT, *chosen], [RECIPES])


@pytest.fixture(params=["double", pytest.param("vllm", marks=pytest.mark.vllm)])
def recipe(request: pytest.FixtureRequest, tmp_path: Path) -> Recipe:
    if request.param == "vllm":
        return recipe_with({"kind": "vllm", "start_seconds": 540}, groups=6, batches=4)
    fake = request.getfixturevalue("fake")
    return recipe_with(
        {"kind": "vllm", "url": fake.url, "weights_directory": str(tmp_path / "weights")},
        groups=2,
        batches=2,
    )


@pytest.fixture
def paths(recipe: Recipe, tmp_path: Path) -> RoundPaths:
    initialise(recipe, tmp_path / "start")
    start_ladder(recipe, tmp_path / "ladder")
    texts = ["State the final answer to the following arithmetic problem: 1 + 2 - 3 = 0 "] * 40
    Tokenizer.train(texts, TokenizerConfig(vocab_size=300), tmp_path / "tokenizer")
    write_jsonl(
        tmp_path / "prompts" / "prompts.jsonl",
        problems(recipe.tasks[0], 0, 12, seed=1, split="rl"),
    )
    publish(tmp_path / "prompts", "prompts", "rl-prompts")
    return RoundPaths(
        prompts=tmp_path / "prompts", tokenizer=tmp_path / "tokenizer",
        checkpoint=tmp_path / "start", ladder=tmp_path / "ladder",
        out_checkpoint=tmp_path / "after", out_rollouts=tmp_path / "rollouts",
        metrics=tmp_path / "metrics",
    )  # fmt: skip


def series(paths: RoundPaths, name: str) -> list[float]:
    rows = (paths.metrics / "metrics.jsonl").read_text().splitlines()
    return [row["value"] for row in map(json.loads, rows) if row["name"] == name]


def test_sampler_and_trainer_agree_at_every_batch_of_a_round_that_learns(recipe, paths):
    run_round(recipe, 1, paths)
    correlations = series(paths, "rl/probability_correlation")
    batches = recipe.rl.batches_per_round
    assert len(correlations) == batches and min(correlations) >= 0.99
    assert max(series(paths, "rl/probability_difference/max")) < 1e-3
    assert len(series(paths, "rollout/sync/seconds")) == batches
    assert max(series(paths, "rollout/sync/probe_difference")) < 1e-3
    rollouts = list(read_jsonl(paths.out_rollouts / "rollouts.jsonl", Rollout))
    versions = [version for version, _ in groupby(r.policy_version for r in rollouts)]
    assert versions == [UPDATES * batch for batch in range(batches)]
    before, after = (d / "model.safetensors" for d in (paths.checkpoint, paths.out_checkpoint))
    assert before.read_bytes() != after.read_bytes()


@pytest.mark.parametrize("recipe", ["double"], indirect=True)
def test_a_round_stops_when_an_update_of_the_sampler_has_no_effect(recipe, paths, monkeypatch):
    post = vllm_module.ServerConnection.post
    monkeypatch.setattr(
        vllm_module.ServerConnection,
        "post",
        lambda self, path, body, deadline: (
            {} if "v4" in str(body.get("kwargs")) else post(self, path, body, deadline)
        ),
    )
    with pytest.raises(CheckpointError, match="version 4 the sampler still answers with version 0"):
        run_round(recipe, 1, paths)
    assert not (paths.out_checkpoint / "checkpoint.json").exists()


@pytest.mark.parametrize("recipe", ["double"], indirect=True)
def test_the_benchmark_samples_with_the_recipes_generator(recipe, paths, tmp_path):
    short = recipe.model_copy(
        update={
            "benchmark": recipe.benchmark.model_copy(
                update={"problems_per_level": 2, "samples_per_problem": 2}
            )
        }
    )
    result = benchmark_checkpoint(
        short, "start", paths.tokenizer, paths.checkpoint, tmp_path / "benchmark"
    )
    assert result.average.samples == 6 * 2 * 2
