import math

import numpy as np
import pytest
from training_parts import rollout

from longstride.training.measuring import batch_metrics, perplexity, round_facts


def test_perplexity_is_exp_of_the_mean_negative_log_probability():
    rollouts = [
        rollout((1, 2), logprobs=[math.log(0.5), math.log(0.25)]),
        rollout((1,), logprobs=[math.log(0.125)]),
    ]
    assert perplexity(rollouts) == pytest.approx((0.5 * 0.25 * 0.125) ** (-1 / 3))


def test_a_lost_log_probability_is_left_out_of_perplexity():
    assert perplexity([rollout((1, 2), logprobs=[math.log(0.5), None])]) == pytest.approx(2)
    assert perplexity([rollout((1,), logprobs=[None])]) is None


def test_the_facts_of_a_round_compare_its_first_and_last_batch():
    first = [rollout((1,) * 4, logprobs=[math.log(0.5)] * 4)]
    last = [
        rollout((1,) * 8, logprobs=[math.log(0.5)] * 4 + [math.log(0.1)] * 4, correct=False,
                finish_reason="length", reward=-1.0),
        rollout((1,) * 2, logprobs=[math.log(0.5)] * 2, correct=True, reward=1.0),
    ]  # fmt: skip
    facts = round_facts(first, last, window=8)
    assert facts.perplexity_first == pytest.approx(2)
    assert facts.perplexity_head == pytest.approx(2)
    assert facts.perplexity_tail == pytest.approx(10)
    assert facts.length_p99 == pytest.approx(np.percentile([8, 2], 99))
    assert (facts.length_p99_correct, facts.length_p99_wrong) == (2, 8)
    assert (facts.truncated_share, facts.reward_mean, facts.samples) == (0.5, 0.0, 2)


def test_metrics_of_a_batch_count_unjudged_samples_apart():
    rollouts = [
        rollout((1, 2), reward=1.0, correct=True),
        rollout((1, 2, 3, 4), reward=0.0, correct=False),
        rollout((1, 2), reward=None, correct=None),
    ]
    values = batch_metrics(rollouts, window=8)
    assert values["rl/accuracy"] == 0.5
    assert values["rl/unjudged_share"] == pytest.approx(1 / 3)
    assert values["rl/reward_length_correlation"] == pytest.approx(-1)
    assert values["rl/tokens/generated"] == 8


def test_a_correlation_without_spread_is_left_out_not_zero():
    values = batch_metrics([rollout(reward=1.0), rollout(reward=1.0)], window=8)
    assert "rl/reward_length_correlation" not in values
