"""Which generator a recipe may ask for, and for which models."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from longstride.errors import RecipeError
from longstride.recipe.loading import load_recipe
from longstride.recipe.resolved import parse_compact
from schemas.base import canonical_json
from schemas.generators import VllmGeneratorConfig

RECIPES = [Path(__file__).parents[2] / "pipelines" / "recipes"]
VLLM = "rollout.generator.kind=vllm"
DENSE = [
    "model.block_types=[softmax, softmax]", "model.head_dim=32", "model.rotary_dim=32",
    "model.num_experts=1", "model.experts_per_token=1", "model.residual=prenorm",
]  # fmt: skip


def test_the_native_generator_is_the_default():
    assert load_recipe("tiny", [], RECIPES).rollout.generator.kind == "native"


@pytest.mark.parametrize("kind", [[], ["model.qkv_bias=true"], ["model.qk_norm=true"]])
def test_a_dense_model_may_roll_out_on_vllm_and_the_choice_survives_the_pipeline(kind):
    recipe = load_recipe("tiny", [*DENSE, *kind, VLLM], RECIPES)
    assert recipe.rollout.generator == VllmGeneratorConfig()
    assert parse_compact(canonical_json(recipe.compact())) == recipe


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ([], r"has 7 lightning layers, and vLLM dropped such models after 0\.23; use .*native"),
        ([*DENSE, "model.residual=deepnorm"], "residual=deepnorm"),
        ([*DENSE, "model.num_experts=2"], "num_experts=2"),
        ([*DENSE, "model.rotary_dim=16"], "rotates 16 of head_dim=32"),
        ([*DENSE, "model.qkv_bias=true", "model.qk_norm=true"], "neither llama nor qwen"),
        ([*DENSE, "model.head_dim=16", "model.rotary_dim=16"], "head_dim=16, and 32 is the small"),
        ([*DENSE, "rollout.temperature=3"], r"rollout\.temperature=3\.0 lies outside 0\.01 to 2"),
        ([*DENSE, "benchmark.temperature=0.001"], r"benchmark\.temperature=0\.001 lies outside"),
    ],
)
def test_what_vllm_cannot_run_is_refused_with_the_reason(changes, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("tiny", [*changes, VLLM], RECIPES)


def test_greedy_benchmarks_are_fine():
    load_recipe("tiny", [*DENSE, "benchmark.temperature=0", VLLM], RECIPES)


def test_a_running_server_needs_a_folder_that_both_sides_see():
    with pytest.raises(ValidationError, match="weights_directory"):
        VllmGeneratorConfig(url="http://rollouts:8000")
    with pytest.raises(ValidationError, match="url"):
        VllmGeneratorConfig(url="rollouts:8000", weights_directory="/shared")
    VllmGeneratorConfig(url="http://rollouts:8000", weights_directory="/shared")
