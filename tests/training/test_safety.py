import json
import math
from pathlib import Path

import pytest
import torch
from training_parts import MODEL, write_packed

from longstride.errors import TrainingDiverged
from longstride.model.checkpoints import load_model
from longstride.model.hybrid import HybridModel
from longstride.recipe.loading import load_recipe
from longstride.training import language
from longstride.training.checkpoints import read_manifest
from longstride.training.engine import TorchEngine
from longstride.training.loop import Loop
from longstride.training.safety import WatchedSteps
from schemas.stages import OptimizerConfig, SpikeConfig

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"
WATCH = {"warmup_steps": 8, "history": 32, "snapshot_steps": 5, "factor": 0.03, "hold_steps": 100}


def recipe_with(rate, **spikes):
    """Training on short rows, then one extension to 16 times the window and 1000 times the base."""
    recipe = load_recipe(
        "tiny",
        ["pretrain.window=16", "pretrain.rows_per_step=8", "pretrain.tokens=8000",
         "pretrain.learning_rate=0.01", "pretrain.warmup_steps=2",
         "extension.0.window=256", "extension.0.rows_per_step=4", "extension.0.tokens=60000",
         "extension.0.rope_base=1.0e+7", "extension.1={window: 512, rope_base: 1.0e+7, "
         "tokens: 1000, learning_rate: 1.0e-3}", "extension.2.rope_base=1.0e+7",
         "extension.2.window=512", "extension.3.rope_base=1.0e+7",
         f"extension.0.learning_rate={rate}", f"extension.0.spikes={json.dumps(spikes)}"],
        [RECIPES],
    )  # fmt: skip
    return recipe.model_copy(update={"model": MODEL})


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A model that has learnt windows of 16, and rows of 256."""
    folder = tmp_path_factory.mktemp("parent")
    recipe = recipe_with(1e-3)
    language.initialise(recipe, folder / "init")
    write_packed(folder / "short", rows=64, window=16)
    write_packed(folder / "long", rows=40, window=256)
    language.train_stage(
        recipe, "pretrain", folder / "short", folder / "init", folder / "base", folder / "m"
    )
    return folder


def extend(parent, out, rate, **spikes):
    recipe = recipe_with(rate, **spikes)
    final = language.train_stage(
        recipe, "extend-1", parent / "long", parent / "base", out / "c", out / "m"
    )
    rows = [json.loads(line) for line in (out / "m" / "metrics.jsonl").read_text().splitlines()]
    names = {row["name"] for row in rows}
    return final, {name: [r["value"] for r in rows if r["name"] == name] for name in names}


RATE = 0.3
"""Far beyond what this model bears."""


def test_an_aggressive_extension_explodes_without_the_watch(parent, tmp_path):
    final, series = extend(parent, tmp_path, RATE, enabled=False)
    assert final["validation_loss"] > final["validation_loss_before"] + 1.0
    assert "train/spikes" not in series


def test_with_the_watch_it_backs_off_and_ends_below_where_it_began(parent, tmp_path):
    final, series = extend(parent, tmp_path, RATE, **WATCH)
    assert final["validation_loss"] < final["validation_loss_before"]
    assert final["back_offs"] >= 1
    assert read_manifest(tmp_path / "c").metrics["back_offs"] == final["back_offs"]
    assert series["train/back_offs"][-1] == final["back_offs"]
    assert min(series["train/learning_rate_scale"]) <= 0.03
    assert min(series["train/learning_rate"]) <= RATE * 0.03
    weights = load_model(tmp_path / "c").state_dict().values()
    assert all(bool(torch.isfinite(value).all()) for value in weights)


def test_a_healthy_stage_trains_to_the_same_bits_with_and_without_the_watch(parent, tmp_path):
    extend(parent, tmp_path / "on", 1e-3, **WATCH)
    extend(parent, tmp_path / "off", 1e-3, enabled=False)
    on, off = (load_model(tmp_path / name / "c").state_dict() for name in ("on", "off"))
    assert all(torch.equal(on[name], off[name]) for name in on)


def test_a_stage_that_cannot_be_saved_fails_with_what_to_change(parent, tmp_path):
    with pytest.raises(TrainingDiverged, match=r"step \d+: .* lower the stage's learning_rate"):
        extend(parent, tmp_path, 30.0, **WATCH | {"factor": 0.9, "max_back_offs": 1})


class _Killed(Exception):
    pass


@pytest.mark.parametrize("at", [17, 26, 47])
def test_a_stage_killed_amid_its_spikes_ends_as_if_it_had_not_been(
    parent, tmp_path, monkeypatch, at
):
    from longstride.training import resuming

    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    advance = Loop.advance

    def with_checkpoints(rate, **spikes):
        recipe = recipe_with(rate, **spikes)
        engine = recipe.engine.model_copy(update={"checkpoint_every_steps": 7})
        return recipe.model_copy(update={"engine": engine})

    def run(out):
        language.train_stage(
            with_checkpoints(RATE, **WATCH), "extend-1", parent / "long", parent / "base",
            out / "c", out / "m",
        )  # fmt: skip

    def killed(loop):
        if loop.position.step == at:
            raise _Killed
        return advance(loop)

    run(whole)
    monkeypatch.setattr(Loop, "advance", killed)
    with pytest.raises(_Killed):
        run(cut)
    monkeypatch.setattr(Loop, "advance", advance)
    assert resuming.resume_directory(cut / "c").is_dir()
    run(cut)
    a, b = (load_model(out / "c").state_dict() for out in (whole, cut))
    assert all(torch.equal(a[name], b[name]) for name in a)
    a, b = (read_manifest(out / "c").metrics for out in (whole, cut))
    assert a == b and a["back_offs"] >= 1


def engine_with_gradients(value):
    model = HybridModel(MODEL)
    model.initialise(0)
    engine = TorchEngine(model, OptimizerConfig(weight_decay=0.0))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    return engine


@pytest.mark.parametrize(("loss", "gradient"), [(math.nan, 0.1), (1.0, math.nan), (50.0, 0.1)])
def test_the_update_of_a_spike_is_left_out(loss, gradient):
    engine = engine_with_gradients(gradient)
    before = {name: value.clone() for name, value in engine.weights()}
    steps = WatchedSteps(engine, SpikeConfig(), reference_loss=2.0)
    assert steps.take(0, loss, 0.1, 1.0).action == "skip"
    assert all(torch.equal(value, before[name]) for name, value in engine.weights())
    assert all(parameter.grad is None for parameter in engine.model.parameters())
    assert engine.skipped_steps == 0


def test_a_snapshot_brings_back_weights_and_moments():
    engine = engine_with_gradients(0.1)
    fresh = engine.snapshot()
    engine.step(0.1, 1.0)
    once = engine.snapshot()
    for parameter in engine.model.parameters():
        parameter.grad = torch.full_like(parameter, 0.3)
    engine.step(0.1, 1.0)
    engine.restore(once)
    again = engine.snapshot()
    assert all(torch.equal(again[name], once[name]) for name in once)
    engine.restore(fresh)
    assert all(not bool(value.any()) for _, value in engine.optimizer_state())
