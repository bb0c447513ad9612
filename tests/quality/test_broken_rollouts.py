"""E5: one fault a case, and exactly the checks that must see it do."""

import math

import numpy as np
import pytest
from quality_parts import judge, make_recipe, make_rollouts, write_rollouts

from longstride.quality import measure_rollouts
from longstride.quality.gate import _open
from longstride.quality.measure_rollouts import correlation
from longstride.quality.subject import Subject
from longstride.quality.suites import load_suite, resolve

RECIPE = make_recipe()
SUITE = resolve(load_suite("E5"), RECIPE)


def failed(rollouts, out, **summary):
    artifact = _open(write_rollouts(out, rollouts, **summary), "rollouts")
    measured = measure_rollouts.measure(Subject("rl-1", RECIPE, artifact, None))
    outcome = judge(SUITE, measured)
    return {name for name, passed in outcome.items() if not passed}, measured


def edit(index=0, **changes):
    def change(rollouts):
        rollouts[index] = rollouts[index].model_copy(update=changes)

    return change


def every(make):
    def change(rollouts):
        rollouts[:] = [rollout.model_copy(update=make(rollout)) for rollout in rollouts]

    return change


def holed(rollouts):
    rollouts[0].logprobs[3] = None


def shifted_trainer(rollouts):
    for rollout in rollouts:
        rollout.trainer_logprobs = list(reversed(rollout.logprobs))


def slightly_off_trainer(rollouts):
    rng = np.random.default_rng(0)
    for rollout in rollouts:
        rollout.trainer_logprobs = [
            math.log(min(0.99, math.exp(v) * (1 + e)))
            for v, e in zip(rollout.logprobs, rng.normal(0, 0.035, 99), strict=False)
        ]


def lost_sample(rollouts):
    del rollouts[3]


def cut_off(rollouts):
    for rollout in rollouts[:8]:
        rollout.finish_reason = "length"
        rollout.window = len(rollout.tokens)


def collapsed_entropy(rollouts):
    for rollout in rollouts[12:]:
        rollout.logprobs = [v * 0.3 for v in rollout.logprobs]
        rollout.trainer_logprobs = list(rollout.logprobs)


def long_wrong_answers(rollouts):
    for number, rollout in enumerate(rollouts):
        keep = 12 if rollout.correct else 20
        keep += number % 3
        names = ("tokens", "logprobs", "trainer_logprobs", "importance_weights")
        cut = {name: getattr(rollout, name)[:keep] for name in names}
        rollouts[number] = rollout.model_copy(update=cut)


CASES = {
    "logprobs_finite": holed,
    "logprobs_not_positive": edit(logprobs=[0.5, *make_rollouts()[0].logprobs[1:]]),
    "lengths_equal": edit(trainer_logprobs=make_rollouts()[0].trainer_logprobs[:-1]),
    "weights_aligned": edit(importance_weights=[1.0]),
    "weights_not_negative": edit(
        importance_weights=[-1.0, *make_rollouts()[0].importance_weights[1:]]
    ),
    "not_empty": edit(tokens=[], logprobs=[], trainer_logprobs=[], importance_weights=[]),
    "within_window": edit(window=10),
    "within_context": edit(prompt_tokens=[9] * 250),
    "truncation_explained": edit(finish_reason="length"),
    "tokens_in_vocabulary": edit(prompt_tokens=[400]),
    "rewards_add_up": edit(reward=2.0, rewards={"correct": 1.0}),
    "unjudged": edit(reward=None, correct=None, rewards={}),
    "groups_whole": lost_sample,
    "advantages_centred": edit(advantage=3.0),
    "zero_spread": every(lambda r: {"reward": 1.0, "rewards": {"correct": 1.0}}),
    "probability_correlation": shifted_trainer,
    "probability_correlation_healthy": slightly_off_trainer,
    "truncation": cut_off,
    "repetition": edit(text="again and again " * 200),
    "unsolved_length": long_wrong_answers,
    "capped_weights": every(lambda r: {"importance_weights": [9.0] * len(r.tokens)}),
    "entropy_kept": collapsed_entropy,
    "trained_share": every(lambda r: {"advantage": None}),
}
ALONG = {
    "probability_correlation": {"probability_correlation_healthy", "mismatch_kl"},
    "logprobs_not_positive": {"probability_correlation", "probability_correlation_healthy"},
    "groups_whole": {"advantages_centred"},
    "unsolved_length": {"reward_length_correlation"},
}
"""What a fault breaks besides, and rightly so."""


@pytest.mark.parametrize("name", CASES)
def test_a_fault_fails_its_check_and_no_other(name, tmp_path):
    rollouts = make_rollouts()
    CASES[name](rollouts)
    found, _ = failed(rollouts, tmp_path)
    assert name in found
    assert found <= {name} | ALONG.get(name, set())


def test_one_rollout_twice_is_seen(tmp_path):
    rollouts = make_rollouts()
    found, _ = failed([*rollouts, rollouts[0]], tmp_path)
    assert {"ids_unique", "groups_whole"} <= found


def test_reward_that_follows_length_is_seen(tmp_path):
    rollouts = make_rollouts()
    for rollout in rollouts:
        rollout.reward = len(rollout.tokens) / 40
        rollout.rewards = {"correct": rollout.reward}
    assert failed(rollouts, tmp_path)[0] == {"reward_length_correlation"}


def test_the_ladders_lowered_cap_counts_and_not_the_recipes(tmp_path):
    found, _ = failed(make_rollouts(), tmp_path, is_weight_cap=1.0)
    assert found == {"capped_weights"}


def test_agreement_equals_closed_forms(tmp_path):
    rollouts = make_rollouts()
    _, measured = failed(rollouts, tmp_path)
    sampler = np.concatenate([r.logprobs for r in rollouts])
    trainer = np.concatenate([r.trainer_logprobs for r in rollouts])
    ratio = np.exp(trainer - sampler)
    assert measured.summary["mismatch_kl"] == pytest.approx((ratio - 1 - np.log(ratio)).mean())
    expected = np.corrcoef(np.exp(sampler), np.exp(trainer))[0, 1]
    assert measured.summary["probability_correlation"] == pytest.approx(expected)


def test_correlation_without_spread_is_one_only_for_equal_series():
    same = np.full(4, 0.5)
    assert correlation(same, same) == 1.0
    assert correlation(same, same + 0.1) == 0.0


def test_culprits_name_batch_and_group(tmp_path):
    _, measured = failed(make_rollouts()[:-1], tmp_path)
    assert measured.culprits["broken_groups"] == ["batch 1 group 2"]
