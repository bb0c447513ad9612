"""Properties of the unified form that hold for every algorithm, on updates drawn at random."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from longstride.rl.objectives import objective_of, policy_loss, sequence_coefficients
from schemas.algorithms import (
    CispoConfig,
    CorrectionConfig,
    DapoConfig,
    GrpoConfig,
    GspoConfig,
    PpoClipConfig,
    ReinforceConfig,
    SaoConfig,
)

ALGORITHMS = {
    "cispo": CispoConfig(is_weight_cap=1.3),
    "cispo with floor and mask": CispoConfig(
        is_weight_cap=1.3, is_weight_floor=0.7, mask_low=0.3, mask_high=0.4
    ),
    "cispo on the sampler": CispoConfig(is_weight_cap=1.3, anchor="rollout"),
    "cispo, tokens corrected": CispoConfig(correction=CorrectionConfig(cap=1.2)),
    "cispo, tokens masked": CispoConfig(
        correction=CorrectionConfig(outside="zero", low=0.8, cap=1.2)
    ),
    "cispo, sequences masked": CispoConfig(
        correction=CorrectionConfig(level="sequence", outside="zero", low=0.9, cap=1.1)
    ),
    "cispo, prompts": CispoConfig(aggregation="prompt"),
    "cispo, combined": CispoConfig(aggregation="combined", sample_share=0.3),
    "reinforce": ReinforceConfig(),
    "sao": SaoConfig(band_low=0.7, band_high=1.4),
    "ppo": PpoClipConfig(),
    "dapo": DapoConfig(correction=CorrectionConfig(cap=1.2)),
    "grpo": GrpoConfig(),
    "gspo": GspoConfig(clip_low=0.1, clip_high=0.1),
}
every_algorithm = pytest.mark.parametrize("algorithm", ALGORITHMS.values(), ids=ALGORITHMS)
some_examples = settings(max_examples=8)


@st.composite
def updates(draw):
    """Log-probabilities near each other, advantages of both signs, lengths and prompts."""
    lengths = draw(st.lists(st.integers(1, 5), min_size=2, max_size=5))
    groups = draw(st.lists(st.integers(0, 2), min_size=len(lengths), max_size=len(lengths)))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10_000)))
    shape = (len(lengths), max(lengths))

    def normal(*size):
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    old_BT = -torch.rand(shape, generator=generator, dtype=torch.float64) * 4
    return {
        "logp": old_BT + 0.5 * normal(*shape),
        "old": old_BT,
        "rollout": old_BT + 0.2 * normal(*shape),
        "advantage": normal(len(lengths)),
        "mask": torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None],
        "groups": groups,
    }


def coefficients(objective, update):
    lengths = update["mask"].sum(1).tolist()
    found = sequence_coefficients(
        lengths, update["groups"], objective.aggregation, objective.sample_share
    )
    return torch.tensor(found, dtype=torch.float64)


def run(algorithm, update, coefficient_B=None):
    objective = objective_of(algorithm)
    if coefficient_B is None:
        coefficient_B = coefficients(objective, update)
    logp_BT = update["logp"].clone().requires_grad_()
    result = policy_loss(
        objective, logp_BT, update["old"], update["rollout"], update["advantage"], update["mask"],
        coefficient_B,
    )  # fmt: skip
    result.loss.backward()
    return result, logp_BT.grad


def rows(update, index):
    taken = {k: v[index] for k, v in update.items() if k != "groups"}
    return taken | {"groups": [update["groups"][i] for i in index]}


@every_algorithm
@some_examples
@given(update=updates())
def test_the_gradient_of_every_token_is_weight_times_advantage_times_coefficient(algorithm, update):
    result, grad = run(algorithm, update)
    coefficient_B = coefficients(objective_of(algorithm), update)
    expected = -coefficient_B[:, None] * result.weight_BT * update["advantage"][:, None]
    torch.testing.assert_close(grad, torch.where(update["mask"], expected, 0.0))
    assert not any(t.requires_grad for t in (result.ratio_BT, result.weight_BT))


@every_algorithm
@some_examples
@given(update=updates(), amount=st.integers(1, 4),
       garbage=st.sampled_from([math.nan, math.inf, -math.inf, 1e4]))  # fmt: skip
def test_padding_changes_nothing_whatever_it_holds(algorithm, update, amount, garbage):
    result, grad = run(algorithm, update)
    padded = dict(update)
    for name in ("logp", "old", "rollout"):
        clean = torch.where(update["mask"], update[name], garbage)
        padded[name] = torch.nn.functional.pad(clean, (0, amount), value=garbage)
    padded["mask"] = torch.nn.functional.pad(update["mask"], (0, amount), value=False)
    other, other_grad = run(algorithm, padded)
    assert float(other.loss.detach()) == pytest.approx(float(result.loss.detach()), abs=1e-12)
    torch.testing.assert_close(other_grad[:, : grad.shape[1]], grad, rtol=1e-12, atol=1e-12)
    assert (other_grad[~padded["mask"]] == 0).all()
    assert (other.ratio_BT[~padded["mask"]] == 1).all()


@every_algorithm
@some_examples
@given(update=updates(), data=st.data())
def test_neither_the_order_of_the_sequences_nor_a_cut_changes_anything(algorithm, update, data):
    result, grad = run(algorithm, update)
    order = data.draw(st.permutations(range(len(grad))))
    shuffled, shuffled_grad = run(algorithm, rows(update, order))
    assert float(shuffled.loss.detach()) == pytest.approx(float(result.loss.detach()), abs=1e-12)
    torch.testing.assert_close(shuffled_grad, grad[order])
    whole = coefficients(objective_of(algorithm), update)
    pieces = [run(algorithm, rows(update, [i]), whole[[i]]) for i in range(len(grad))]
    summed = sum(float(piece.loss.detach()) for piece, _ in pieces)
    assert summed == pytest.approx(float(result.loss.detach()), abs=1e-12)
    torch.testing.assert_close(torch.cat([piece_grad for _, piece_grad in pieces]), grad)


@every_algorithm
@some_examples
@given(update=updates())
def test_the_gradient_is_the_slope_of_the_loss_with_its_weights_held(algorithm, update):
    """Central differences of -sum c A sg(w) log pi, and of the surrogate itself for PPO's kin."""
    result, grad = run(algorithm, update)
    objective = objective_of(algorithm)
    coefficient_B, step = coefficients(objective, update), 1e-6

    def value(logp_BT):
        moved = policy_loss(
            objective, logp_BT, update["old"], update["rollout"], update["advantage"],
            update["mask"], coefficient_B,
        )  # fmt: skip
        if objective.value == "surrogate":
            return float(moved.loss)
        held_BT = coefficient_B[:, None] * result.weight_BT * update["advantage"][:, None]
        return -float((held_BT * logp_BT)[update["mask"]].sum())

    low, high = 1 - (objective.mask_low or 0), 1 + (objective.mask_high or 0)
    kink_BT = torch.minimum((result.ratio_BT - low).abs(), (result.ratio_BT - high).abs()) < 1e-4
    for i, t in update["mask"].nonzero().tolist():
        if objective.value == "surrogate" and kink_BT[i, t]:
            continue
        up, down = update["logp"].clone(), update["logp"].clone()
        up[i, t] += step
        down[i, t] -= step
        slope = (value(up) - value(down)) / (2 * step)
        assert slope == pytest.approx(float(grad[i, t]), abs=1e-7)


@every_algorithm
@some_examples
@given(update=updates(), seed=st.integers(0, 999))
def test_the_gradient_to_the_logits_is_the_closed_form(algorithm, update, seed):
    """-(w A c)(onehot - softmax), whatever the vocabulary."""
    shape = (*update["mask"].shape, 7)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(shape, generator=generator, dtype=torch.float64, requires_grad=True)
    tokens = torch.randint(0, 7, shape[:2], generator=generator)
    logp_BT = logits.log_softmax(-1).gather(-1, tokens[..., None])[..., 0]
    objective = objective_of(algorithm)
    coefficient_B = coefficients(objective, update)
    result = policy_loss(
        objective, logp_BT, update["old"], update["rollout"], update["advantage"], update["mask"],
        coefficient_B,
    )  # fmt: skip
    result.loss.backward()
    factor = (coefficient_B * update["advantage"])[:, None] * result.weight_BT
    onehot = torch.nn.functional.one_hot(tokens, 7).double()
    expected = -factor[..., None] * (onehot - logits.detach().softmax(-1))
    torch.testing.assert_close(logits.grad, expected)


@every_algorithm
@some_examples
@given(update=updates())
def test_float32_is_within_1e_5_of_float64(algorithm, update):
    result, grad = run(algorithm, update)
    single = {k: v.float() if torch.is_tensor(v) and v.is_floating_point() else v
              for k, v in update.items()}  # fmt: skip
    other, other_grad = run(algorithm, single)
    if ((other.weight_BT == 0) != (result.weight_BT == 0)).any():
        return  # a ratio on a bound falls on the other side
    assert float(other.loss.detach()) == pytest.approx(
        float(result.loss.detach()), rel=1e-5, abs=1e-5
    )
    torch.testing.assert_close(other_grad.double(), grad, rtol=1e-5, atol=1e-6)


def test_a_sequence_correction_does_not_explode_with_the_length():
    length = 20_000
    old_BT = torch.full((1, length), -1.0, dtype=torch.float64)
    correction = CorrectionConfig(level="sequence", outside="zero", low=0.9, cap=1.1)
    update = {
        "logp": old_BT.clone(), "old": old_BT, "rollout": old_BT - 0.01,
        "advantage": torch.ones(1, dtype=torch.float64),
        "mask": torch.ones(1, length, dtype=torch.bool), "groups": [0],
    }  # fmt: skip
    result, _ = run(CispoConfig(correction=correction), update)
    assert float(result.correction_BT.max()) == pytest.approx(math.exp(0.01))
    assert float(result.correction_BT.min()) == pytest.approx(math.exp(0.01))


@pytest.mark.parametrize("where", ["logp", "old"])
def test_a_log_probability_of_the_trainer_that_is_not_a_number_stays_visible(where):
    ones = torch.full((1, 2), -1.0, dtype=torch.float64)
    update = {"logp": ones.clone(), "old": ones.clone(), "rollout": ones, "groups": [0],
              "advantage": torch.ones(1, dtype=torch.float64),
              "mask": torch.ones(1, 2, dtype=torch.bool)}  # fmt: skip
    update[where][0, 1] = math.nan
    for algorithm in ALGORITHMS.values():
        if where == "old" and getattr(algorithm, "anchor", "old") == "rollout":
            continue
        result, _ = run(algorithm, update)
        assert not math.isfinite(float(result.loss.detach())), algorithm


@pytest.mark.parametrize("kind", [CispoConfig, ReinforceConfig, SaoConfig])
def test_the_sampler_as_anchor_is_refused_together_with_a_correction(kind):
    with pytest.raises(ValidationError, match=r"anchor: rollout already divides"):
        kind(anchor="rollout", correction=CorrectionConfig())


def test_the_combined_mean_bounds_what_one_long_answer_can_weigh():
    lengths = [10, 10, 10, 970]
    by_token, combined = (
        sequence_coefficients(lengths, [0] * 4, aggregation)[3] * 970
        for aggregation in ("token", "combined")
    )
    assert by_token == pytest.approx(0.97)
    assert combined == pytest.approx(0.5 * 0.97 + 0.5 * 0.25)
