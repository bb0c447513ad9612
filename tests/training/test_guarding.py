"""What is not finite is named and saved, and never reaches the weights."""

import json
import math

import pytest
import torch
from training_parts import MODEL, rollout

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.rl.objectives import objective_of
from longstride.rl.reflection import ReflectionMatcher
from longstride.training.engine import TorchEngine
from longstride.training.guarding import UpdateGuard
from longstride.training.updating import UpdateSettings, recompute_old_policy, update
from schemas.algorithms import CispoConfig
from schemas.engine import TorchEngine as TorchConfig
from schemas.stages import OptimizerConfig

SETTINGS = UpdateSettings(
    objective=objective_of(CispoConfig()), updates=2, learning_rate=0.05, grad_clip=1.0,
    temperature=1.0, minimum_correlation=0.99,
)  # fmt: skip
MATCHER = ReflectionMatcher({}, lambda token: b"x")


@pytest.fixture
def prepared():
    model = HybridModel(MODEL)
    model.initialise(5)
    engine = TorchEngine(model, OptimizerConfig(weight_decay=0.0), TorchConfig())
    rollouts = [rollout((3, 4, 5), advantage=1.0), rollout((7, 8), advantage=-1.0, sample=1)]
    recompute_old_policy(engine, rollouts, 1.0)
    return engine, rollouts


def weights(engine):
    return {name: value.clone() for name, value in engine.weights()}


def assert_untouched(engine, before):
    for name, value in engine.weights():
        assert torch.equal(value, before[name]), name


def poison(engine, name):
    parameter = dict(engine.model.named_parameters())[name]
    healthy = parameter.detach().clone()
    with torch.no_grad():
        parameter.view(-1)[0] = math.nan
    return parameter, healthy


def test_a_weight_that_is_not_finite_is_named_and_the_batch_is_saved(prepared, tmp_path):
    engine, rollouts = prepared
    parameter, healthy = poison(engine, "head.weight")
    before = weights(engine)
    guard = UpdateGuard(3, tmp_path)
    result = update(engine, rollouts, SETTINGS, guard, MATCHER, step=12)
    assert result.metrics == {"rl/skipped_steps": 1} and result.rows == []
    saved = json.loads((tmp_path / "bad-update-000012.json").read_text())
    assert saved["problem"] == "weight 'head.weight' was"
    assert [row["tokens"] for row in saved["rollouts"]] == [[3, 4, 5], [7, 8]]
    with torch.no_grad():
        parameter.copy_(healthy)
    before["head.weight"] = healthy
    assert_untouched(engine, before)
    assert "rl/loss" in update(engine, rollouts, SETTINGS, guard, MATCHER).metrics
    assert (guard.skipped, guard.in_a_row) == (1, 0)


def test_a_module_whose_output_overflows_is_named(prepared):
    engine, rollouts = prepared
    block = engine.model.blocks[0]
    handle = block.register_forward_hook(lambda m, i, output: (output[0] * math.inf, output[1]))
    before = weights(engine)
    guard = UpdateGuard(1, None)
    with pytest.raises(CheckpointError, match=r"output of 'blocks.0' was not finite at update 4"):
        update(engine, rollouts, SETTINGS, guard, MATCHER, step=4)
    handle.remove()
    assert_untouched(engine, before)


def test_a_gradient_that_is_not_finite_is_named_and_skipped(prepared, tmp_path):
    engine, rollouts = prepared
    before = weights(engine)
    parameter = dict(engine.model.named_parameters())["embed.weight"]
    handle = parameter.register_hook(lambda gradient: gradient * math.nan)
    guard = UpdateGuard(2, tmp_path)
    update(engine, rollouts, SETTINGS, guard, MATCHER, step=1)
    with pytest.raises(
        CheckpointError,
        match=r"gradient of 'embed.weight' was not finite at "
        r"update 2, the last of 2 bad .*maximum_bad_updates=2.*2 sequences are in",
    ):
        update(engine, rollouts, SETTINGS, guard, MATCHER, step=2)
    handle.remove()
    assert_untouched(engine, before)
    assert {path.name for path in tmp_path.iterdir()} == {
        "bad-update-000001.json", "bad-update-000002.json",
    }  # fmt: skip


def test_a_good_update_between_bad_ones_starts_the_count_again(prepared):
    engine, rollouts = prepared
    guard = UpdateGuard(2, None)
    parameter = dict(engine.model.named_parameters())["embed.weight"]
    for _ in range(3):
        handle = parameter.register_hook(lambda gradient: gradient * math.nan)
        update(engine, rollouts, SETTINGS, guard, MATCHER)
        handle.remove()
        update(engine, rollouts, SETTINGS, guard, MATCHER)
    assert (guard.skipped, guard.in_a_row) == (3, 0)


def test_the_state_of_a_guard_goes_into_another_one():
    guard, other = UpdateGuard(5, None), UpdateGuard(5, None)
    guard.bad(0, "loss was", [])
    other.load_state(guard.state())
    assert (other.skipped, other.in_a_row) == (1, 1)
