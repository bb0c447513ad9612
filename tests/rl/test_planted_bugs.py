"""Bugs that others shipped, planted into a copy of our source: each turns a check red."""

import math
import sys
import types
from pathlib import Path

import pytest
import torch

from longstride.model.hybrid import HybridModel
from longstride.rl import advantages, objectives
from longstride.rl.conformance import losses
from longstride.rl.conformance.checking import check_all
from longstride.rl.objectives import objective_of
from longstride.rl.reflection import ReflectionMatcher
from longstride.training import updating
from longstride.training.engine import TorchEngine
from longstride.training.guarding import UpdateGuard
from schemas.algorithms import CispoConfig
from schemas.engine import TorchEngine as TorchConfig
from schemas.model import ModelConfig
from schemas.rows import Rollout
from schemas.stages import OptimizerConfig

RATIO = "ratio_BT = _ratio(logp_BT.detach(), anchor_BT, mask_BT, known_BT, objective.level)"
BOUNDED = "bounded_BT = _clip(ratio_BT, objective.weight_floor, objective.weight_cap)"
MASK = "token_mask(ratio_BT, advantage_BT, objective.mask_low, objective.mask_high)"
LOSS = "loss = -(coefficient_BT * advantage_BT * weight_BT * logp_BT).sum()"
MADE = "return Objective(**{**_FIXED[algorithm.kind], **own})"
PLANTED = {
    "missing stop-gradient": [
        (RATIO, RATIO.replace("logp_BT.detach()", "logp_BT")),
    ],
    "missing log-probability factor": [
        (LOSS, "loss = -(coefficient_BT * advantage_BT * weight_BT).sum() + 0 * logp_BT.sum()"),
    ],
    "the mask has the bounds of the weight": [
        (
            MASK,
            "token_mask(ratio_BT, advantage_BT, objective.weight_floor, "
            "objective.weight_cap and objective.weight_cap - 1)",
        ),
    ],
    "a floor at 1": [(BOUNDED, "bounded_BT = _clip(ratio_BT, 1.0, objective.weight_cap)")],
    "the cap for positive advantages only": [
        (
            BOUNDED,
            f"{BOUNDED}\n    bounded_BT = torch.where(advantage_BT > 0, bounded_BT, ratio_BT)",
        ),
    ],
    "padding multiplied out": [
        ("logp_BT = torch.where(mask_BT, logp_BT, 0.0).to(dtype)", "logp_BT = logp_BT.to(dtype)"),
        (
            "log_BT = torch.where(known_BT, numerator_BT, 0.0) "
            "- torch.where(known_BT, denominator_BT, 0.0)",
            "log_BT = numerator_BT - denominator_BT",
        ),
        ("return log_BT.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()", "return log_BT.exp()"),
        (
            "weight_BT = torch.where(kept_BT & inside_BT, bounded_BT * correction_BT, 0.0)",
            "weight_BT = ratio_BT * correction_BT * (kept_BT & inside_BT)",
        ),
    ],
    "a cap of 0.2": [(MADE, "own['weight_cap'] = own.get('weight_cap') and 0.2\n    " + MADE)],
    "the cap as an offset from 1": [
        (MADE, "own['weight_cap'] = own.get('weight_cap') and own['weight_cap'] + 1\n    " + MADE),
    ],
    "the ratio upside down": [
        (RATIO, RATIO.replace("logp_BT.detach(), anchor_BT", "anchor_BT, logp_BT.detach()")),
    ],
    "sequences weigh the same": [
        (
            "return [of_tokens] * len(lengths)",
            "return [1.0 / (length * len(lengths)) for length in lengths]",
        ),
    ],
    "a clip without its value": [
        ("clipped_BT = _clip(ratio_BT, low, high)", "clipped_BT = ratio_BT"),
    ],
}
"""Bug -> texts of objectives.py and what they become."""


def mutant(module, replacements):
    """A copy of a module whose source was changed; the module itself stays as it is."""
    source = Path(module.__file__).read_text()
    for old, new in replacements:
        assert source.count(old) == 1, f"{module.__name__} no longer holds {old!r} once"
        source = source.replace(old, new)
    copy = types.ModuleType(f"{module.__name__}_mutant")
    copy.__file__ = module.__file__
    sys.modules[copy.__name__] = copy
    try:
        exec(compile(source, f"<{copy.__name__}>", "exec"), copy.__dict__)
    finally:
        del sys.modules[copy.__name__]
    return copy


def red_cases(monkeypatch, module):
    """Names of the conformance cases in which another module of objectives disagrees."""
    for name in ("objective_of", "policy_loss", "sequence_coefficients"):
        monkeypatch.setattr(losses, name, getattr(module, name))
    return [o.case.name for o in check_all(losses.longstride_loss) if o.status != "agrees"]


def test_an_unchanged_copy_turns_nothing_red(monkeypatch):
    assert red_cases(monkeypatch, mutant(objectives, [])) == []


@pytest.mark.parametrize("bug", PLANTED)
def test_a_planted_bug_turns_a_conformance_case_red(bug, monkeypatch):
    assert red_cases(monkeypatch, mutant(objectives, PLANTED[bug]))


def test_a_mean_of_microbatch_means_turns_the_case_of_microbatches_red():
    right = "[1.0 / update_tokens] * len(lengths)"
    planted = "[len(lengths) / update_sequences / sum(lengths)] * len(lengths)"
    wrong = mutant(losses, [(right, planted)])
    red = [o.case.name for o in check_all(wrong.longstride_loss) if o.status != "agrees"]
    assert red == ["microbatches"]


MODEL = ModelConfig(
    vocab_size=32, hidden_size=16, block_types=["lightning", "softmax"], num_heads=2,
    num_kv_heads=1, head_dim=8, rotary_dim=4, num_experts=2, experts_per_token=1,
    expert_hidden_size=16, init_std=0.1, router_aux_loss_coef=0.0,
)  # fmt: skip


def gradient_norm(module, microbatch_tokens):
    """Norm of the gradient of one update, taken by the trainer's own code."""
    model = HybridModel(MODEL)
    model.initialise(5)
    engine = TorchEngine(model, OptimizerConfig(), TorchConfig(microbatch_tokens=microbatch_tokens))
    rollouts = [
        Rollout(prompt_id="p", group=0, sample=number, batch=0, prompt_tokens=[1, 2],
                tokens=list(range(3, 3 + length)), logprobs=[-1.0] * length, text="",
                finish_reason="stop", reward=1.0, advantage=advantage, window=16)
        for number, (length, advantage) in enumerate([(9, 1.0), (2, -1.0), (5, 0.5), (1, -0.5)])
    ]  # fmt: skip
    module.recompute_old_policy(engine, rollouts, 1.0)
    settings = module.UpdateSettings(
        objective=objective_of(CispoConfig()), updates=1, learning_rate=1e-3, grad_clip=1e9,
        temperature=1.0, minimum_correlation=0.0,
    )  # fmt: skip
    matcher = ReflectionMatcher({}, lambda token: b"x")
    updated = module.update(engine, rollouts, settings, UpdateGuard(1, None), matcher)
    return updated.metrics["rl/grad_norm"]


def test_a_trainer_that_averages_microbatches_depends_on_how_it_cuts_them():
    wrong = mutant(updating, [
        ("own = [coefficients[places[id(rollout)]] for rollout in piece]",
         "own = [c * len(piece) / len(minibatch) for c in sequence_coefficients("
         "[len(r.tokens) for r in piece], [r.group for r in piece], 'token')]"),
    ])  # fmt: skip
    right = [gradient_norm(updating, limit) for limit in (1, 1000)]
    assert right[0] == pytest.approx(right[1], rel=1e-4)
    cut, whole = (gradient_norm(wrong, limit) for limit in (1, 1000))
    assert whole == pytest.approx(right[1], rel=1e-4)
    assert abs(cut / whole - 1) > 0.05


def test_a_swapped_standard_deviation_misses_the_known_advantage():
    wrong = mutant(advantages, [('(deviation == "sample")', '(deviation != "sample")')])
    rewards = [1.0, 0.0, 0.0, 0.0]
    for module, expected in ((advantages, math.sqrt(3)), (wrong, 1.5)):
        found = module.normalise([rewards], "group", "population")[0][0]
        assert found == pytest.approx(expected)


def test_a_denominator_that_counts_padding_turns_cases_red():
    right = "lengths = mask.sum(dim=1).tolist()"
    planted = "lengths, update_tokens = [mask.shape[1]] * len(mask), mask.numel()"
    wrong = mutant(losses, [(right, planted)])
    red = {o.case.name for o in check_all(wrong.longstride_loss) if o.status != "agrees"}
    assert {"padding", "ragged", "grpo"} <= red


def test_bfloat16_inputs_are_computed_in_float32():
    logp = torch.tensor([[-0.5, -1.0]], dtype=torch.bfloat16)
    ones, mask = torch.ones(1, dtype=torch.bfloat16), torch.ones(1, 2, dtype=torch.bool)
    result = objectives.policy_loss(objective_of(CispoConfig()), logp, logp, logp, ones, mask, ones)
    assert result.loss.dtype == result.ratio_BT.dtype == torch.float32
