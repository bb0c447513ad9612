"""The conformance kit: its reference against outside values, ours against it, and its diagnoses."""

import json
from pathlib import Path

import pytest
import torch

from longstride.rl.conformance.cases import CASES
from longstride.rl.conformance.checking import CannotExpress, check, check_all, distance
from longstride.rl.conformance.losses import longstride_loss, target
from longstride.rl.conformance.reference import BUGS, Answer, Inputs, answer

ORACLES = {
    case["id"][:2]: case
    for case in json.loads((Path(__file__).parents[1] / "oracles" / "rl_oracles.json").read_text())[
        "cases"
    ]
}
BY_NAME = {case.name: case for case in CASES}


def inputs_of(oracle):
    given = oracle["inputs"]
    logs = {
        key: [[float(torch.tensor(p, dtype=torch.float64).log()) for p in row]
              for row in given[f"prob_{key}"]] if f"prob_{key}" in given else None
        for key in ("new", "old")
    }  # fmt: skip
    new, old = logs["new"] or given["logp"], logs["old"] or given["old_logp"]
    return Inputs(new, old, old, given["advantages"], given["mask"], [0] * len(new))


def cispo(cap=None, floor=None):
    return {"kind": "cispo", "is_weight_cap": cap, "is_weight_floor": floor}


def clip(kind, low, high):
    return {"kind": kind, "clip_low": low, "clip_high": high}


SHARED = [
    ("01", cispo(1.2), "cispo_loss", "cispo_grad_logp"),
    ("01", clip("ppo_clip", 0.2, 0.2), "ppo_loss", "ppo_grad_logp"),
    ("02", cispo(5.0), ("no_lower_bound", "loss"), ("no_lower_bound", "grad_logp")),
    ("02", cispo(5.0, 0.8), ("eps_low_0p2", "loss"), ("eps_low_0p2", "grad_logp")),
    ("03", cispo(1.28), "cispo_loss", "cispo_grad_logp"),
    ("03", clip("ppo_clip", 0.2, 0.28), "ppo_loss", "ppo_grad_logp"),
    ("04", cispo(5.0), "loss", "grad_logp"),
    ("06", {**cispo(), "mask_low": 0.2, "mask_high": 0.28}, None, "unified_grad_open_weights"),
    ("06", clip("ppo_clip", 0.2, 0.28), "ppo_loss", "ppo_grad"),
    ("07", clip("gspo", 3e-4, 4e-4), "loss", "grad_logp"),
    ("08", clip("grpo", 0.2, 0.2), "loss", "grad_logp"),
]
"""Oracle, algorithm, and where its loss and gradient are."""


def at(oracle, path):
    value = ORACLES[oracle]["expected"]
    for key in (path,) if isinstance(path, str) else path:
        value = value[key]
    return value


@pytest.mark.parametrize(("oracle", "algorithm", "loss", "gradient"), SHARED)
def test_the_reference_gives_the_values_that_were_computed_elsewhere(
    oracle, algorithm, loss, gradient
):
    found = answer(inputs_of(ORACLES[oracle]), algorithm)
    wanted = Answer(found.loss if loss is None else at(oracle, loss), at(oracle, gradient))
    assert distance(found, wanted) < 1e-10


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
@pytest.mark.parametrize(("oracle", "algorithm", "loss", "gradient"), SHARED)
def test_our_objectives_give_the_values_that_were_computed_elsewhere(
    oracle, algorithm, loss, gradient, dtype
):
    inputs = inputs_of(ORACLES[oracle])
    logp = torch.tensor(inputs.logp, dtype=dtype, requires_grad=True)
    old = torch.tensor(inputs.old_logp, dtype=dtype)
    if algorithm["kind"] == "cispo" and algorithm["is_weight_cap"] is None:
        algorithm = {**algorithm, "is_weight_cap": 1e6}
    found = longstride_loss(
        logp=logp, old_logp=old, rollout_logp=old,
        advantages=torch.tensor(inputs.advantages, dtype=dtype),
        mask=torch.tensor(inputs.mask, dtype=torch.bool),
        groups=torch.tensor(inputs.groups), update_tokens=sum(map(sum, inputs.mask)),
        update_sequences=len(inputs.mask), algorithm=algorithm,
    )  # fmt: skip
    found.backward()
    exact = (
        {"rtol": 1e-10, "atol": 1e-10} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    )
    if loss is not None:
        wanted = torch.tensor(at(oracle, loss), dtype=dtype)
        torch.testing.assert_close(found.detach(), wanted, **exact)
    wanted = torch.tensor(at(oracle, gradient), dtype=dtype)
    torch.testing.assert_close(logp.grad, wanted, **exact)


def test_no_shared_oracle_is_left_out():
    elsewhere = {
        "10": "rewards/test_scoring.py", "12": "rl/test_objectives.py",
        "14": "rollout/test_repetition_stop.py",
    }  # fmt: skip
    assert {row[0] for row in SHARED} | set(elsewhere) == set(ORACLES)
    for number, path in elsewhere.items():
        text = (Path(__file__).parents[1] / path).read_text()
        assert f'"{number}"' in text or ORACLES[number]["id"] in text, path


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_our_objectives_agree_in_every_case(dtype):
    outcomes = check_all(longstride_loss, dtype=dtype)
    assert {o.case.name: o.status for o in outcomes} == dict.fromkeys(BY_NAME, "agrees")


@pytest.mark.parametrize("bug", BUGS)
def test_every_known_bug_gives_another_value_in_some_case(bug):
    moved = [c.name for c in CASES
             if distance(c.expected, answer(c.inputs, c.settings, bug)) > 1e-6]  # fmt: skip
    assert moved


def test_case_names_are_distinct_and_say_why_they_are_there():
    assert len(BY_NAME) == len(CASES)
    assert all(case.why for case in CASES)


def plain_cispo(*, logp, old_logp, advantages, mask, update_tokens, algorithm, **_):
    """What an outsider might write."""
    if algorithm["kind"] != "cispo":
        raise CannotExpress("CISPO only")
    weight = (logp - old_logp).exp().clamp(max=algorithm["is_weight_cap"]).detach()
    return -torch.where(mask, weight * advantages[:, None] * logp, 0.0).sum() / update_tokens


def test_a_foreign_function_is_checked_by_its_value_and_its_gradient():
    assert check(BY_NAME["rare-token"], plain_cispo).status == "agrees"
    assert check(BY_NAME["gspo"], plain_cispo).status == "cannot express"

    def without_gradient(**arguments):
        return plain_cispo(**arguments).detach()

    outcome = check(BY_NAME["rare-token"], without_gradient)
    assert (outcome.status, outcome.difference) == ("differs", pytest.approx(0.4))


def test_a_wrong_value_is_named_when_it_is_that_of_a_known_bug():
    def floor_at_one(*, algorithm, **arguments):
        return longstride_loss(algorithm={**algorithm, "is_weight_floor": 1.0}, **arguments)

    outcome = check(BY_NAME["cap-both-signs"], floor_at_one)
    assert outcome.status == "differs"
    assert outcome.note == "looks like: weight may not fall below 1"


def test_a_function_that_raises_or_returns_nonsense_fails_in_that_case_only():
    outcomes = check_all(lambda **_: 1 / 0)
    assert {o.status for o in outcomes} == {"fails"}
    assert "ZeroDivisionError" in outcomes[0].note
    assert "not a scalar tensor" in check(CASES[0], lambda **_: 3.0).note


def test_padding_that_reaches_the_loss_is_said_to_be_multiplied_out():
    def multiplied(*, logp, old_logp, advantages, mask, update_tokens, **_):
        weight = (logp - old_logp).exp().clamp(max=5.0).detach()
        weight = torch.where(weight == 5.0, torch.inf, weight)
        return -(weight * advantages[:, None] * logp * mask).sum() / update_tokens

    assert "multiplied out" in check(BY_NAME["padding"], multiplied).note


@pytest.mark.parametrize("text", ["nowhere", "os:", "no.such.module:f", "os:name", "os:nothing"])
def test_a_target_that_is_no_function_is_refused(text):
    with pytest.raises(ValueError, match=text.partition(":")[0]):
        target(text)
