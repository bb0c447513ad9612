"""Objectives against reference values computed independently of this code."""

import json
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.rl.objectives import Objective, objective_of, policy_loss, sequence_coefficients
from schemas.algorithms import CispoConfig, DapoConfig, GrpoConfig, GspoConfig, ReinforceConfig

CASES = {
    case["id"][:2]: case
    for case in json.loads((Path(__file__).parents[1] / "oracles" / "rl_oracles.json").read_text())[
        "cases"
    ]
}
TOLERANCE = {"rtol": 1e-10, "atol": 1e-10}


def run(objective, logp, old, advantages, mask):
    """Loss, gradient to logp and the detached parts, in float64."""
    logp_BT = torch.as_tensor(logp, dtype=torch.float64).clone().requires_grad_()
    old_BT = torch.as_tensor(old, dtype=torch.float64)
    mask_BT = torch.as_tensor(mask, dtype=torch.bool)
    lengths = mask_BT.sum(1).tolist()
    coefficient = sequence_coefficients(lengths, [0] * len(lengths), objective.aggregation)
    result = policy_loss(
        objective,
        logp_BT,
        old_BT,
        old_BT,
        torch.as_tensor(advantages, dtype=torch.float64),
        mask_BT,
        torch.as_tensor(coefficient, dtype=torch.float64),
    )
    result.loss.backward()
    return float(result.loss.detach()), logp_BT.grad, result


def log_inputs(case):
    inputs = case["inputs"]
    return (
        torch.tensor(inputs["prob_new"], dtype=torch.float64).log(),
        torch.tensor(inputs["prob_old"], dtype=torch.float64).log(),
        inputs["advantages"],
        inputs["mask"],
    )


def cispo(cap, floor=None, **mask):
    return objective_of(CispoConfig(is_weight_cap=cap, is_weight_floor=floor, **mask))


def clipped(low, high, aggregation="token"):
    return Objective(aggregation, "surrogate", mask_low=low, mask_high=high)


def assert_matches(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), **TOLERANCE)


def test_a_rare_token_past_the_cap_keeps_a_capped_gradient_which_ppo_drops():
    case = CASES["01"]
    loss, grad, result = run(cispo(1.2), *log_inputs(case))
    expected = case["expected"]
    assert loss == pytest.approx(expected["cispo_loss"], abs=1e-10)
    assert_matches(grad, expected["cispo_grad_logp"])
    assert_matches(result.ratio_BT, expected["ratios"])
    assert_matches(result.weight_BT, expected["weights"])
    capped = float((result.ratio_BT > 1.2).double().mean())
    assert capped == pytest.approx(expected["capped_token_fraction"])
    ppo_loss, ppo_grad, _ = run(clipped(0.2, 0.2), *log_inputs(case))
    assert ppo_loss == pytest.approx(expected["ppo_loss"], abs=1e-10)
    assert_matches(ppo_grad, expected["ppo_grad_logp"])


@pytest.mark.parametrize(
    ("name", "floor"), [("no_lower_bound", None), ("eps_low_1", 0.0), ("eps_low_0p2", 0.8)]
)
def test_the_cap_is_five_and_a_floor_binds_only_when_asked_for(name, floor):
    expected = CASES["02"]["expected"][name]
    loss, grad, result = run(cispo(5.0, floor), *log_inputs(CASES["02"]))
    assert loss == pytest.approx(expected["loss"], abs=1e-10)
    assert_matches(grad, expected["grad_logp"])
    assert_matches(result.weight_BT, expected["weights"])


def test_the_cap_binds_for_negative_advantages_too():
    case = CASES["03"]
    loss, grad, _ = run(cispo(1.28), *log_inputs(case))
    assert loss == pytest.approx(case["expected"]["cispo_loss"], abs=1e-10)
    assert_matches(grad, case["expected"]["cispo_grad_logp"])
    dapo = objective_of(DapoConfig(clip_low=0.2, clip_high=0.28))
    ppo_loss, ppo_grad, _ = run(dapo, *log_inputs(case))
    assert ppo_loss == pytest.approx(case["expected"]["ppo_loss"], abs=1e-10)
    assert_matches(ppo_grad, case["expected"]["ppo_grad_logp"])


@pytest.mark.parametrize("objective", [cispo(5.0), clipped(0.2, 0.2), objective_of(GspoConfig())])
def test_garbage_at_padded_positions_never_reaches_loss_or_gradient(objective):
    inputs = CASES["04"]["inputs"]
    logp, old = torch.tensor(inputs["logp"]), torch.tensor(inputs["old_logp"])
    arguments = (inputs["advantages"], inputs["mask"])
    _, grad, result = run(objective, logp, old, *arguments)
    assert torch.isfinite(grad).all() and torch.isfinite(result.ratio_BT).all()
    assert (grad[~torch.tensor(inputs["mask"], dtype=torch.bool)] == 0).all()


def test_padding_gives_the_reference_loss_and_ratio_statistics():
    case = CASES["04"]
    inputs, expected = case["inputs"], case["expected"]
    loss, grad, result = run(
        cispo(5.0), inputs["logp"], inputs["old_logp"], inputs["advantages"], inputs["mask"]
    )
    ratios = result.ratio_BT[torch.tensor(inputs["mask"], dtype=torch.bool)]
    assert loss == pytest.approx(expected["loss"], abs=1e-10)
    assert_matches(grad, expected["grad_logp"])
    assert ratios.numel() == expected["active_tokens"]
    assert float(ratios.mean()) == pytest.approx(expected["ratio_mean"], abs=1e-10)
    assert float(ratios.max()) == pytest.approx(expected["ratio_max"], abs=1e-10)
    assert float(ratios.min()) == pytest.approx(expected["ratio_min"], abs=1e-10)


def test_the_mask_with_open_weights_gives_the_gradient_of_ppo_token_for_token():
    case = CASES["06"]
    expected, arguments = case["expected"], log_inputs(case)
    unified = Objective("token", mask_low=0.2, mask_high=0.28)
    _, grad, result = run(unified, *arguments)
    assert_matches(grad, expected["unified_grad_open_weights"])
    assert_matches((result.weight_BT > 0).double(), expected["mask_M"])
    ppo_loss, ppo_grad, _ = run(clipped(0.2, 0.28), *arguments)
    assert ppo_loss == pytest.approx(expected["ppo_loss"], abs=1e-10)
    assert_matches(ppo_grad, expected["ppo_grad"])


def test_the_weight_pair_and_the_mask_pair_are_two_separate_pairs():
    case = CASES["06"]
    expected, arguments = case["expected"], log_inputs(case)
    _, all_ones, _ = run(cispo(1.28), *arguments)
    assert_matches(all_ones, expected["cispo_grad_M_all_ones_eps_high_is_0p28"])
    _, reused, _ = run(cispo(1.28, floor=0.8, mask_low=0.2, mask_high=0.28), *arguments)
    assert_matches(reused, expected["same_eps_for_both_grad"])
    ppo_grad = torch.tensor(expected["ppo_grad"], dtype=torch.float64)
    different = (reused - ppo_grad).abs() > 1e-12
    assert different.nonzero().tolist() == expected["same_eps_differs_from_ppo_at"]


def test_gspo_keeps_or_drops_whole_sequences_by_their_length_normalised_ratio():
    inputs, expected = CASES["07"]["inputs"], CASES["07"]["expected"]
    loss, grad, result = run(
        objective_of(GspoConfig(clip_low=3e-4, clip_high=4e-4)),
        inputs["logp"], inputs["old_logp"], inputs["advantages"], inputs["mask"],
    )  # fmt: skip
    assert loss == pytest.approx(expected["loss"], abs=1e-10)
    assert_matches(grad, expected["grad_logp"])
    assert_matches(result.ratio_BT[:, 0], expected["sequence_ratios"])
    assert (result.weight_BT.sum(1) == 0).nonzero().flatten().tolist() == [1, 2]


def test_grpo_averages_over_each_sequence_and_then_over_sequences():
    case = CASES["08"]
    loss, grad, _ = run(objective_of(GrpoConfig()), *log_inputs(case))
    assert loss == pytest.approx(case["expected"]["loss"], abs=1e-10)
    assert_matches(grad, case["expected"]["grad_logp"])
    token_loss, token_grad, _ = run(clipped(0.2, 0.2), *log_inputs(case))
    assert token_loss == pytest.approx(case["other_aggregations"]["token_mean_loss"], abs=1e-10)
    assert_matches(token_grad, case["other_aggregations"]["token_mean_grad_logp"])


def test_the_gradient_to_the_logits_has_no_path_through_the_weight():
    inputs, expected = CASES["12"]["inputs"], CASES["12"]["expected"]
    logits = torch.tensor(inputs["logits"], dtype=torch.float64, requires_grad=True)
    tokens = torch.tensor(inputs["tokens"])
    logp = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    old = torch.tensor(inputs["prob_old"], dtype=torch.float64).log()
    ones = torch.ones(1, dtype=torch.float64)
    mask = torch.ones(1, 2, dtype=torch.bool)
    result = policy_loss(cispo(5.0), logp, old, old, ones, mask, ones / 2)
    result.loss.backward()
    assert float(result.loss.detach()) == pytest.approx(expected["loss"], abs=1e-10)
    assert_matches(result.weight_BT, expected["weights"])
    assert_matches(logits.grad, expected["grad_logits"])


def test_a_token_whose_sampling_probability_was_lost_gets_the_weight_one():
    logp, old = torch.tensor([[-1.0, -2.0]]), torch.tensor([[float("nan"), -1.0]])
    _, grad, result = run(cispo(5.0, anchor="rollout"), logp, old, [1.0], [[1, 1]])
    assert float(result.weight_BT[0, 0]) == 1.0
    assert torch.isfinite(grad).all()


def test_reinforce_never_caps_a_weight():
    logp, old = torch.tensor([[-1.0]]), torch.tensor([[-6.0]])
    _, _, result = run(objective_of(ReinforceConfig()), logp, old, [1.0], [[1]])
    assert float(result.weight_BT) == pytest.approx(148.4131591, rel=1e-8)


def test_a_lower_cap_of_the_ladder_wins_over_the_recipe():
    assert objective_of(CispoConfig(is_weight_cap=5.0), 2.0).weight_cap == 2.0


@pytest.mark.parametrize("aggregation", ["token", "sequence", "prompt"])
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_loss_does_not_depend_on_how_the_update_is_cut(aggregation, data):
    lengths = data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=6))
    groups = data.draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    generator = torch.Generator().manual_seed(data.draw(st.integers(0, 1000)))
    shape = (len(lengths), max(lengths))
    logp = -torch.rand(shape, generator=generator, dtype=torch.float64)
    old = -torch.rand(shape, generator=generator, dtype=torch.float64)
    advantage = torch.randn(len(lengths), generator=generator, dtype=torch.float64)
    mask = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    coefficient = torch.tensor(sequence_coefficients(lengths, groups, aggregation))
    whole = policy_loss(cispo(1.2), logp, old, old, advantage, mask, coefficient).loss
    cut = data.draw(st.integers(1, len(lengths) - 1))
    parts = [slice(0, cut), slice(cut, None)]
    pieces = sum(
        policy_loss(cispo(1.2), logp[p], old[p], old[p], advantage[p], mask[p], coefficient[p]).loss
        for p in parts
    )
    assert float(pieces) == pytest.approx(float(whole), abs=1e-12)


@pytest.mark.parametrize("aggregation", ["token", "sequence", "prompt"])
@given(lengths=st.lists(st.integers(1, 50), min_size=1, max_size=8), seed=st.integers(0, 99))
def test_coefficients_of_all_tokens_sum_to_one(aggregation, lengths, seed):
    groups = [(seed * 7 + i * i) % 3 for i in range(len(lengths))]
    coefficients = sequence_coefficients(lengths, groups, aggregation)
    total = sum(c * n for c, n in zip(coefficients, lengths, strict=True))
    assert total == pytest.approx(1.0)
