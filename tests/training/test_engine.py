import pytest
import torch
from training_parts import MODEL

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.training.engine import TorchEngine
from schemas.stages import OptimizerConfig


def engine_with_gradient(value, **optimizer):
    model = HybridModel(MODEL)
    model.initialise(3)
    engine = TorchEngine(model, OptimizerConfig(**({"weight_decay": 0.0} | optimizer)))
    for parameter in model.parameters():
        parameter.grad = torch.full_like(parameter, value)
    return engine


@pytest.mark.parametrize("gradient", [1e-3, 1e-7, 1e-10, 1e-12])
def test_eps_1e_15_moves_a_weight_by_the_rate_however_small_its_gradient(gradient):
    engine = engine_with_gradient(gradient, eps=1e-15)
    before = engine.model.head.weight.detach().clone()
    engine.step(1e-3, grad_clip=1e9)
    moved = (engine.model.head.weight.detach() - before).abs()
    torch.testing.assert_close(moved, torch.full_like(moved, 1e-3), rtol=2e-3, atol=0)


def test_weight_decay_acts_on_matrices_and_not_on_norms():
    engine = engine_with_gradient(0.0, weight_decay=0.5)
    matrix = engine.model.head.weight.detach().clone()
    norm = engine.model.norm.weight.detach().clone()
    engine.step(0.1, grad_clip=1.0)
    torch.testing.assert_close(engine.model.head.weight.detach(), matrix * 0.95)
    assert torch.equal(engine.model.norm.weight.detach(), norm)


def test_a_step_with_a_gradient_that_is_not_finite_changes_no_weight():
    engine = engine_with_gradient(float("nan"))
    before = engine.model.head.weight.detach().clone()
    assert engine.step(1e-3, grad_clip=1.0) == 0.0
    assert torch.equal(engine.model.head.weight.detach(), before)
    assert engine.skipped_steps == 1


def test_three_such_steps_in_a_row_stop_the_run_and_name_the_parameter():
    engine = engine_with_gradient(0.0)
    with pytest.raises(CheckpointError, match=r"gradient of 'head.weight' was not finite in 3"):
        for _ in range(3):
            engine.model.head.weight.grad = torch.full_like(engine.model.head.weight, torch.inf)
            engine.step(1e-3, grad_clip=1.0)


def test_the_optimizer_state_survives_a_round_trip_bit_for_bit():
    def two_steps(engine, reload):
        for value in (0.1, -0.2):
            for parameter in engine.model.parameters():
                parameter.grad = torch.full_like(parameter, value)
            engine.step(1e-2, grad_clip=1e9)
            if reload:
                fresh = TorchEngine(engine.model, OptimizerConfig(weight_decay=0.0))
                fresh.load_optimizer_state({k: v.clone() for k, v in engine.optimizer_state()})
                engine = fresh
        return engine.model.head.weight.detach().clone()

    plain = two_steps(engine_with_gradient(0.0), reload=False)
    assert torch.equal(plain, two_steps(engine_with_gradient(0.0), reload=True))
