from pathlib import Path

import pytest
import torch
from training_parts import MODEL, write_packed

from longstride.errors import CheckpointError, DataError, RecipeError
from longstride.model.checkpoints import load_model
from longstride.model.hybrid import HybridModel
from longstride.recipe.loading import load_recipe
from longstride.training import language
from longstride.training.checkpoints import read_manifest
from longstride.training.engine import TorchEngine
from longstride.training.loop import accumulate
from longstride.training.packed import open_packed, step_indices
from schemas.engine import TorchEngine as TorchConfig
from schemas.stages import OptimizerConfig

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


@pytest.fixture(scope="module")
def recipe():
    found = load_recipe(
        "tiny",
        ["pretrain.window=16", "pretrain.rows_per_step=8", "pretrain.tokens=4000",
         "pretrain.learning_rate=0.01", "pretrain.warmup_steps=2", "extension.0.window=16",
         "extension.0.rows_per_step=4", "extension.0.tokens=128", "extension.0.rope_base=77777",
         "extension.1.rope_base=77777", "extension.2.rope_base=77777"],
        [RECIPES],
    )  # fmt: skip
    return found.model_copy(update={"model": MODEL})


@pytest.fixture
def start(recipe, tmp_path):
    language.initialise(recipe, tmp_path / "init")
    return tmp_path / "init"


def train(recipe, start, tmp_path, stage="pretrain", name="a"):
    packed = (
        write_packed(tmp_path / "packed")
        if not (tmp_path / "packed").exists()
        else (tmp_path / "packed")
    )
    return language.train_stage(
        recipe, stage, packed, start, tmp_path / name, tmp_path / f"m-{name}"
    )


def test_training_learns_a_pattern_and_says_so_on_held_out_rows(recipe, start, tmp_path):
    final = train(recipe, start, tmp_path)
    assert final["validation_loss"] < 0.5 * final["validation_loss_before"]
    assert final["loss"] < 2.0


def test_the_same_seed_gives_the_same_weights_to_the_last_bit(recipe, start, tmp_path):
    train(recipe, start, tmp_path, name="a")
    train(recipe, start, tmp_path, name="b")
    a, b = (load_model(tmp_path / name).state_dict() for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


def test_a_checkpoint_records_its_parents_its_steps_and_its_tokens(recipe, start, tmp_path):
    train(recipe, start, tmp_path)
    manifest = read_manifest(tmp_path / "a")
    assert manifest.step == 32
    assert manifest.tokens_seen == 32 * 8 * 16
    assert set(manifest.parents) == {"checkpoint", "packed"}
    assert manifest.recipe_digest == recipe.digest()


def test_an_extension_stage_moves_the_rope_base_and_counts_on(recipe, start, tmp_path):
    train(recipe, start, tmp_path)
    train(recipe, tmp_path / "a", tmp_path, stage="extend-1", name="b")
    assert load_model(tmp_path / "b").config.rope_base == 77777
    assert read_manifest(tmp_path / "b").tokens_seen == 32 * 8 * 16 + 128


def test_an_unknown_stage_is_refused_with_those_there_are(recipe):
    with pytest.raises(RecipeError, match=r"no stage 'extend-9'.*extend-4"):
        language.plan_of(recipe, "extend-9", 10)


def engine_on(model, **options):
    return TorchEngine(model, OptimizerConfig(), TorchConfig(**options))


def test_the_gradient_does_not_depend_on_the_cut_into_microbatches(tmp_path):
    rows = open_packed(write_packed(tmp_path / "packed", rows=6), 64)
    gradients = []
    for limit in (16, 48, 4096):
        config = MODEL.model_copy(update={"router_aux_loss_coef": 0.0})
        model = HybridModel(config)
        model.initialise(0)
        accumulate(engine_on(model, microbatch_tokens=limit), rows)
        gradients.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    for other in gradients[1:]:
        torch.testing.assert_close(gradients[0], other, rtol=1e-4, atol=1e-7)


def test_a_step_without_targets_is_refused(tmp_path):
    rows = open_packed(write_packed(tmp_path / "packed"), 64)
    rows.loss_mask_NT.zero_()
    with pytest.raises(RecipeError, match="no target tokens"):
        accumulate(engine_on(HybridModel(MODEL)), rows)


def test_token_ids_outside_the_vocabulary_are_refused(tmp_path):
    with pytest.raises(DataError, match=r"token id \d+ but the model has 32 entries"):
        open_packed(write_packed(tmp_path / "packed"), 32)


def test_a_truncated_parent_checkpoint_is_refused_by_name(recipe, start, tmp_path):
    weights = start / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors has \d+ bytes.*truncated"):
        train(recipe, start, tmp_path)


def test_every_row_is_used_once_a_pass():
    steps = list(step_indices(rows=10, rows_per_step=5, steps=4, seed=1))
    assert sorted(torch.cat(steps[:2]).tolist()) == list(range(10))
    assert sorted(torch.cat(steps[2:]).tolist()) == list(range(10))
