"""The engine in a recipe: a union by kind, and refusals that say the fix."""

from pathlib import Path

import pytest

from longstride.errors import RecipeError
from longstride.recipe.loading import load_recipe
from schemas.engine import DeepSpeedEngine, TorchEngine
from schemas.recipe import Recipe

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


def tiny(*overrides):
    return load_recipe("tiny", overrides, [RECIPES])


def test_plain_torch_is_the_default_and_needs_no_kind():
    assert tiny().engine == TorchEngine()
    assert tiny("engine.microbatch_tokens=256").engine == TorchEngine(microbatch_tokens=256)


def test_a_recipe_with_deepspeed_survives_its_compact_form():
    recipe = tiny("engine.kind=deepspeed", "engine.zero_stage=3", "engine.persistent_elements=0")
    assert Recipe.model_validate(recipe.compact()) == recipe
    assert recipe.engine == DeepSpeedEngine(zero_stage=3, persistent_elements=0)


def test_compact_keeps_the_kind_of_an_engine_that_is_otherwise_the_default():
    assert tiny("engine.kind=deepspeed").compact()["engine"] == {"kind": "deepspeed"}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["engine.kind=torch", "engine.ranks=2"], r"engine\.torch\.ranks: unknown field"),
        (["engine.kind=horovod"], "horovod"),
        (["engine.kind=deepspeed", "engine.zero_stage=4"], r"zero_stage: got 4"),
        (["engine.kind=deepspeed", "engine.zero_stage=0", "engine.offload_optimizer=true"],
         r"offload_optimizer=true needs a sharded optimizer.*choose zero_stage 1, 2 or 3"),
        (["engine.kind=deepspeed", "engine.zero_stage=2", "engine.persistent_elements=0"],
         r"persistent_elements=0 means something only with zero_stage=3"),
        (["engine.dtype=float16"], r"dtype: got 'float16'"),
        (["engine.microbatch_tokens=0"], r"microbatch_tokens: got 0"),
        (["engine.kind=deepspeed", "engine.ranks=4"],
         r"a step of pretrain has 1 microbatch\(es\) of 128 x 32 tokens for engine\.ranks=4"),
    ],
)  # fmt: skip
def test_what_no_engine_can_do_is_refused_with_the_fix(overrides, message):
    with pytest.raises(RecipeError, match=message):
        tiny(*overrides)
