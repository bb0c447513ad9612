import math

import numpy as np
import pytest
from training_parts import rollout

from longstride.training.collecting import Batch
from longstride.training.measuring import (
    batch_metrics,
    group_metrics,
    perplexity,
    round_facts,
)


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
        rollout((1, 2), reward=None, correct=None, not_judged="timeout"),
    ]
    values = batch_metrics(rollouts, window=8)
    assert values["rl/not_judged/timeout"] == 1
    assert "rl/not_judged/died" not in values
    assert values["rl/accuracy"] == 0.5
    assert values["rl/unjudged_share"] == pytest.approx(1 / 3)
    assert values["rl/tokens/generated"] == 8


def answers(lengths, family="sums", right=lambda length: length > 4):
    return [
        rollout((1,) * length, group=place, family=family, correct=right(length),
                reward=float(right(length)))
        for place, length in enumerate(lengths)
    ]  # fmt: skip


def test_a_correlation_without_spread_is_left_out_not_zero():
    values = batch_metrics(answers([3, 3, 3, 3]), window=8)
    assert not [name for name in values if "correlation" in name]


def test_reward_and_length_correlate_as_numpy_says_for_all_tasks_and_for_each_family():
    sums = answers([2, 3, 7, 8, 4, 5])
    words = answers([2, 6, 7, 3, 5], "words", right=lambda length: length < 4)
    values = batch_metrics(sums + words, window=8)
    for name, of in (("all", sums + words), ("sums", sums), ("words", words)):
        lengths, rewards = [len(r.tokens) for r in of], [r.reward for r in of]
        expected = np.corrcoef(rewards, lengths)[0, 1]
        prefix = f"rl/correlation/{name}/reward_length"
        assert values[prefix] == pytest.approx(expected)
        assert values[f"{prefix}_low"] <= expected <= values[f"{prefix}_high"]
    assert values["rl/correlation/words/accuracy_length"] < 0


def test_lengths_of_solved_and_of_unsolved_answers_are_told_apart():
    values = batch_metrics(answers([2, 3, 4, 6, 8]), window=8)
    assert values["rl/length_solved/p50"] == 7
    assert values["rl/length_unsolved/p50"] == 3
    assert values["rl/length/p90"] == pytest.approx(np.percentile([2, 3, 4, 6, 8], 90))


def test_the_facts_of_a_round_leave_out_families_with_a_window_of_their_own():
    long = [rollout((1,) * 8, window=8)]
    short = [rollout((1,) * 2, window=2, finish_reason="length")]
    facts = round_facts(long + short, long + short, window=8)
    assert (facts.samples, facts.truncated_share) == (1, 0)


def test_tokens_of_a_batch_are_trained_on_or_wasted():
    kept = [rollout((1, 2, 3), advantage=1.0), rollout((1,), advantage=None)]
    batch = Batch(kept=kept, dropped=[rollout((1,) * 5)], kept_groups=1, dropped_groups=1,
                  waves=2, dropped_for={"all_right": 1})  # fmt: skip
    values = group_metrics(batch, kept[:1])
    assert values["rl/tokens/kept"] == 4
    assert (values["rl/tokens/trained"], values["rl/tokens/wasted"]) == (3, 6)
    assert values["rl/groups/all_right"] == 1
