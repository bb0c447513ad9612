"""Time and money of a plan, worked by hand."""

import math

import pytest

from longstride.recipe.costing import (
    GPUS,
    M1_GPU_HOUR_DOLLARS,
    Assumptions,
    plan_costs,
    round_costs,
)
from longstride.recipe.generation_cost import cost_of
from longstride.recipe.loading import load_recipe
from longstride.recipe.sizes import parameter_counts, training_flops

RECIPES = "pipelines/recipes"


@pytest.fixture(scope="module")
def m1():
    return load_recipe(f"{RECIPES}/minimax-m1.yaml", [])


def assumed(**changes):
    return Assumptions(**{"gpu": GPUS["h800"], "gpus": 512, **changes})


def test_the_report_s_bill_implies_its_hourly_rate():
    """512 GPUs x 24 h x 21 days = 258,048 GPU hours; 534,700 dollars over that."""
    assert pytest.approx(534_700 / 258_048) == M1_GPU_HOUR_DOLLARS
    assert round(M1_GPU_HOUR_DOLLARS, 2) == 2.07


def test_training_time_is_operations_over_what_the_machines_reach(m1):
    cost = plan_costs(m1, assumed(training_utilisation=0.4))[0]
    flops = training_flops(m1.model, m1.pretrain.tokens, m1.pretrain.window)
    assert cost.seconds == pytest.approx(flops / (512 * 989.4e12 * 0.4))
    assert cost.gpu_hours == pytest.approx(512 * cost.seconds / 3600)
    assert cost.dollars == pytest.approx(cost.gpu_hours * 534_700 / 258_048)


def test_twice_the_machines_take_half_the_time_for_the_same_money(m1):
    one, two = (plan_costs(m1, assumed(gpus=gpus))[0] for gpus in (512, 1024))
    assert two.seconds == pytest.approx(one.seconds / 2)
    assert two.dollars == pytest.approx(one.dollars)


def test_a_round_by_hand(m1):
    rollouts, updates = round_costs(m1, assumed(), 1, 40_000)
    samples, model = 40 * 512 * 16, cost_of(m1.model)
    flops = samples * (model.prefill(512) / 16 + model.decode(20_000, 512))
    assert rollouts.tokens == samples * 20_000
    assert rollouts.flops == pytest.approx(flops)
    assert updates.flops == pytest.approx(
        4 / 3 * training_flops(m1.model, samples * 20_512, 20_512)
    )


def test_sampling_is_bound_by_memory_when_weights_outweigh_the_batch(m1):
    """With one sequence at a time every token reads all weights."""
    alone = m1.model_copy(update={
        "rl": m1.rl.model_copy(update={"groups_per_batch": 1, "group_size": 2,
                                       "batches_per_round": 2})})  # fmt: skip
    rollouts, _ = round_costs(alone, assumed(gpus=16), 1, 40_000)
    assert rollouts.bound == "memory"
    total, _ = parameter_counts(m1.model)
    least = 2 * 20_000 * 2 * total / (16 * 3.35e12 * 0.6)
    assert least < rollouts.seconds < 1.1 * least


def test_a_model_that_does_not_fit_takes_for_ever(m1):
    rollouts, _ = round_costs(m1, assumed(gpus=8), 1, 40_000)
    assert math.isinf(rollouts.seconds)


def test_each_round_is_planned_at_the_window_that_open_gates_would_give(m1):
    names = [cost.name for cost in plan_costs(m1, assumed())]
    assert names[:5] == ["pretrain", "extend-1", "extend-2", "extend-3", "extend-4"]
    assert names[5:7] == ["round 1 rollouts", "round 1 updates"] and len(names) == 5 + 24
    rollouts = [c for c in plan_costs(m1, assumed()) if "rollouts" in c.name]
    assert rollouts[5].tokens == 2 * rollouts[0].tokens == rollouts[11].tokens
