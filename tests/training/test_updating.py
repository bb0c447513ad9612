import math

import pytest
import torch
from training_parts import MODEL, rollout

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.rl.objectives import objective_of
from longstride.rl.reflection import ReflectionMatcher
from longstride.training import updating
from longstride.training.engine import TorchEngine
from longstride.training.guarding import UpdateGuard
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


MATCHER = ReflectionMatcher({"wait": ["wait"]}, lambda token: b" Wait" if token == 11 else b" x")


def update(engine, minibatch, settings=SETTINGS, guard=None, **options):
    return updating.update(engine, minibatch, settings, guard or UpdateGuard(3, None), MATCHER,
                           **options)  # fmt: skip


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
    first = update(current, rollouts[:2]).metrics
    second = update(current, rollouts[2:]).metrics
    assert first["rl/is_weight/max"] == pytest.approx(1.0, abs=1e-4)
    assert abs(second["rl/is_weight/max"] - 1.0) > 1e-3
    assert [len(r.importance_weights) for r in rollouts] == [4, 2, 3, 1]


def test_an_update_raises_the_probability_of_good_answers_and_lowers_that_of_bad_ones():
    current, rollouts = engine(), batch()
    updating.recompute_old_policy(current, rollouts, 1.0)
    before = [sum(r.trainer_logprobs) for r in rollouts]
    settings = SETTINGS.__class__(**(SETTINGS.__dict__ | {"learning_rate": 0.002}))
    update(current, rollouts, settings)
    updating.recompute_old_policy(current, rollouts, 1.0)
    change = [sum(r.trainer_logprobs) - b for r, b in zip(rollouts, before, strict=True)]
    assert change[0] > 0 > change[1]


@pytest.mark.parametrize("limit", [1, 12])
def test_the_gradient_does_not_depend_on_microbatches(limit):
    def norm(**options):
        current, rollouts = engine(**options), batch()
        updating.recompute_old_policy(current, rollouts, 1.0)
        return update(current, rollouts).metrics

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


def test_the_audit_of_an_update_is_about_the_tokens_of_the_reflection_words():
    current, rollouts = engine(), batch()
    updating.recompute_old_policy(current, rollouts, 1.0)
    update(current, rollouts[:2])
    result = update(current, rollouts[2:], off_policy_round=2)
    rows = {row.bucket: row for row in result.rows}
    assert set(rows) == {"wait", "reflection", "other"}
    assert (rows["wait"].tokens, rows["other"].tokens) == (1, 3)
    assert {row.off_policy_round for row in result.rows} == {2}
    one = rollouts[2]
    assert rows["wait"].ratio == pytest.approx(one.importance_weights[1])
    assert rows["wait"].probability_old == pytest.approx(math.exp(one.trainer_logprobs[1]))
    new = math.exp(one.trainer_logprobs[1]) * one.importance_weights[1]
    assert rows["wait"].probability_new == pytest.approx(new, rel=1e-4)
    share = result.metrics["rl/audit/wait/gradient_share"]
    pulls = [[w * abs(r.advantage) for w in r.importance_weights] for r in rollouts[2:]]
    assert share == pytest.approx(pulls[0][1] / sum(map(sum, pulls)), rel=1e-4)


def test_shares_of_the_gradient_by_third_and_by_sign_add_up():
    current, rollouts = engine(), batch()
    updating.recompute_old_policy(current, rollouts, 1.0)
    values = update(current, rollouts).metrics
    thirds = [values[f"rl/gradient_share/{name}_third"] for name in ("first", "middle", "last")]
    assert sum(thirds) == pytest.approx(1)
    signs = values["rl/gradient_share/positive"] + values["rl/gradient_share/negative"]
    assert signs == pytest.approx(1)
