import math

import pytest
import torch
from training_parts import MODEL, rollout

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.rl.objectives import objective_of
from longstride.training import updating
from longstride.training.engine import TorchEngine
from longstride.training.sequences import microbatches, pad_sequences, sequence_logprobs
from schemas.algorithms import CispoConfig
from schemas.engine import TorchEngine as TorchConfig
from schemas.stages import OptimizerConfig

SETTINGS = updating.UpdateSettings(
    objective=objective_of(CispoConfig()), updates=2, learning_rate=0.05, grad_clip=1e9,
    temperature=1.0, minimum_correlation=0.99,
)  # fmt: skip


def fresh_model(aux=0.0):
    model = HybridModel(MODEL.model_copy(update={"router_aux_loss_coef": aux}))
    model.initialise(5)
    return model


def batch():
    return [
        rollout((3, 4, 5, 6), advantage=1.0, sample=0),
        rollout((7, 8), advantage=-1.0, sample=1),
        rollout((10, 11, 12), (1, 2, 3, 4), advantage=0.5, group=1),
        rollout((13,), (1,), advantage=-0.5, group=1, sample=1),
    ]


def engine(**options):
    optimizer = OptimizerConfig(weight_decay=0.0)
    return TorchEngine(fresh_model(), optimizer, TorchConfig(**options))


def test_recomputed_log_probabilities_are_those_of_each_sequence_alone():
    model, rollouts = fresh_model(), batch()
    updating.recompute_old_policy(TorchEngine(model, OptimizerConfig()), rollouts, temperature=1.0)
    for one in rollouts:
        ids = torch.tensor([one.prompt_tokens + one.tokens])
        logits = model.logits(model(ids).hidden_BTD)[0].log_softmax(-1).detach()
        start = len(one.prompt_tokens)
        expected = [float(logits[start + i - 1, t]) for i, t in enumerate(one.tokens)]
        assert one.trainer_logprobs == pytest.approx(expected, abs=1e-5)


def test_the_temperature_of_the_sampler_is_the_trainers_too():
    model, rollouts = fresh_model(), batch()
    updating.recompute_old_policy(TorchEngine(model, OptimizerConfig()), rollouts, temperature=0.5)
    one = rollouts[1]
    ids = torch.tensor([one.prompt_tokens + one.tokens])
    logp = (model.logits(model(ids).hidden_BTD)[0] / 0.5).log_softmax(-1).detach()
    assert one.trainer_logprobs[0] == pytest.approx(float(logp[1, 7]), abs=1e-5)


def test_the_first_update_is_on_policy_and_the_second_is_not():
    current, rollouts = engine(), batch()
    updating.recompute_old_policy(current, rollouts, 1.0)
    first = updating.update(current, rollouts[:2], SETTINGS)
    second = updating.update(current, rollouts[2:], SETTINGS)
    assert first["rl/is_weight/max"] == pytest.approx(1.0, abs=1e-4)
    assert abs(second["rl/is_weight/max"] - 1.0) > 1e-3
    assert [len(r.importance_weights) for r in rollouts] == [4, 2, 3, 1]


def test_an_update_raises_the_probability_of_good_answers_and_lowers_that_of_bad_ones():
    current, rollouts = engine(), batch()
    updating.recompute_old_policy(current, rollouts, 1.0)
    before = [sum(r.trainer_logprobs) for r in rollouts]
    settings = SETTINGS.__class__(**(SETTINGS.__dict__ | {"learning_rate": 0.002}))
    updating.update(current, rollouts, settings)
    updating.recompute_old_policy(current, rollouts, 1.0)
    change = [sum(r.trainer_logprobs) - b for r, b in zip(rollouts, before, strict=True)]
    assert change[0] > 0 > change[1]


@pytest.mark.parametrize("limit", [1, 12])
def test_the_gradient_does_not_depend_on_microbatches(limit):
    def norm(**options):
        current, rollouts = engine(**options), batch()
        updating.recompute_old_policy(current, rollouts, 1.0)
        return updating.update(current, rollouts, SETTINGS)

    whole = norm()
    cut = norm(microbatch_tokens=limit)
    assert cut["rl/grad_norm"] == pytest.approx(whole["rl/grad_norm"], rel=1e-4)
    assert cut["rl/loss"] == pytest.approx(whole["rl/loss"], abs=1e-5)


def test_sampler_and_trainer_that_disagree_stop_the_run():
    model, rollouts = fresh_model(), batch()
    updating.recompute_old_policy(TorchEngine(model, OptimizerConfig()), rollouts, 1.0)
    for index, one in enumerate(rollouts):
        one.logprobs = [-0.1 * (index + 1) - 0.5 * i for i in range(len(one.tokens))]
    with pytest.raises(CheckpointError, match=r"correlate -?0\.\d+, below .*=0.99"):
        updating.check_agreement(rollouts, 0.99)


def test_a_sampler_that_runs_the_same_model_agrees():
    model, rollouts = fresh_model(), batch()
    updating.recompute_old_policy(TorchEngine(model, OptimizerConfig()), rollouts, 1.0)
    for one in rollouts:
        one.logprobs = list(one.trainer_logprobs)
    assert updating.check_agreement(rollouts, 0.99).correlation == pytest.approx(1.0)


def test_every_sequence_is_in_exactly_one_minibatch():
    rollouts = [rollout(sample=n) for n in range(37)]
    parts = updating.split_updates(rollouts, 16, seed=1)
    assert sorted(r.sample for part in parts for r in part) == list(range(37))
    assert {len(part) for part in parts} == {2, 3}


def test_more_updates_than_sequences_make_one_update_a_sequence():
    assert len(updating.split_updates([rollout(), rollout()], 16, seed=1)) == 2


def test_padding_lines_log_probabilities_up_with_the_tokens_they_predict():
    sequences = pad_sequences(batch())
    assert sequences.tokens_BT.shape == (4, 7)
    assert sequences.response_BT.sum(1).tolist() == [4, 2, 3, 1]
    assert sequences.tokens_BT[:, 1:][sequences.response_BT].tolist() == [
        3, 4, 5, 6, 7, 8, 10, 11, 12, 13,
    ]  # fmt: skip
    logp_BT, entropy_BT, _ = sequence_logprobs(fresh_model(), sequences, 1.0)
    assert logp_BT.shape == entropy_BT.shape == (4, 6)
    assert float(entropy_BT.max()) <= math.log(64) + 1e-5


def test_microbatches_hold_every_sequence_within_the_limit():
    rollouts = [rollout(tuple(range(1, 1 + n))) for n in (1, 9, 3, 7, 5)]
    pieces = list(microbatches(rollouts, maximum_tokens=14))
    assert sum(len(piece) for piece in pieces) == 5
    assert all(
        len(piece) == 1 or max(2 + len(r.tokens) for r in piece) * len(piece) <= 14
        for piece in pieces
    )
