"""E5: rollouts with one fault."""

import math

import numpy as np
from poison_parts import Poison
from quality_parts import make_rollouts, write_rollouts


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
        keep = 26 if number < 2 and not rollout.correct else 12 + number // 2 % 2
        names = ("tokens", "logprobs", "trainer_logprobs", "importance_weights")
        cut = {name: getattr(rollout, name)[:keep] for name in names}
        rollouts[number] = rollout.model_copy(update=cut)


def rollouts(change=lambda rows: None, *also, **summary):
    def write(parts, out):
        rows = make_rollouts()
        change(rows)
        return write_rollouts(out, rows, **summary)

    return Poison(write, frozenset(also))


def again(rows):
    """One rollout replaces another of its group."""
    rows[2] = rows[0]


def stuck(rows):
    """Two groups are all wrong and cut off at their window; the rest carries on."""
    for rollout in rows[:8]:
        rollout.finish_reason, rollout.window = "length", len(rollout.tokens)
        rollout.correct = False


def drifting_apart(rows):
    """In the last batch the trainer thinks less of rare tokens."""
    for rollout in rows[12:]:
        rollout.trainer_logprobs = [v - 0.6 if math.exp(v) < 0.25 else v for v in rollout.logprobs]


def length_pays(rows):
    for rollout in rows:
        rollout.reward = len(rollout.tokens) / 40
        rollout.rewards = {"correct": rollout.reward}


def length_pays_in_one_family(rows):
    """In one family reward falls with length, in the other it rises: overall there is nothing."""
    for number, rollout in enumerate(rows):
        sign = 1 if number % 2 else -1
        rollout.family = "ab"[number % 2]
        rollout.reward = 0.5 + sign * (len(rollout.tokens) - 26) / 40
        rollout.rewards = {"correct": rollout.reward}


def mixed_scripts(rows):
    rows[0].text = "<think>so the sum is \u0441\u0443\u043c\u043c\u0430</think>9"


def heavy(rows):
    rows[0].importance_weights[0] = 5_000.0


FIRST = make_rollouts()[0]
ABOVE = [0.01, *FIRST.logprobs[1:]]
BELOW = [-1.0, *FIRST.importance_weights[1:]]
POISONS = {
    "ids_unique": rollouts(again, "groups_whole"),
    "logprobs_finite": rollouts(holed),
    "logprobs_not_positive": rollouts(edit(
        logprobs=ABOVE, trainer_logprobs=[0.01, *FIRST.trainer_logprobs[1:]])),
    "lengths_equal": rollouts(edit(trainer_logprobs=FIRST.trainer_logprobs[:-1])),
    "weights_aligned": rollouts(edit(importance_weights=[1.0])),
    "weights_not_negative": rollouts(edit(importance_weights=BELOW)),
    "not_empty": rollouts(edit(tokens=[], logprobs=[], trainer_logprobs=[], importance_weights=[])),
    "within_window": rollouts(edit(window=10)),
    "within_context": rollouts(edit(prompt_tokens=[9] * 250)),
    "truncation_explained": rollouts(edit(finish_reason="length")),
    "tokens_in_vocabulary": rollouts(edit(prompt_tokens=[400])),
    "rewards_add_up": rollouts(edit(reward=1.0, rewards={"correct": 0.5})),
    "unjudged": rollouts(
        edit(reward=None, correct=None, rewards={}, not_judged="disagreement")),
    "verifier_timeouts": rollouts(
        edit(reward=None, correct=None, rewards={}, not_judged="timeout"), "unjudged"),
    "groups_whole": rollouts(lambda rows: rows.__setitem__(
        3, rows[3].model_copy(update={"prompt_id": "another"}))),
    "advantages_centred": rollouts(edit(advantage=3.0)),
    "zero_spread": rollouts(every(lambda r: {"reward": 1.0, "rewards": {"correct": 1.0}})),
    "probability_correlation": rollouts(
        shifted_trainer, "probability_correlation_healthy", "mismatch_kl"),
    "probability_correlation_healthy": rollouts(slightly_off_trainer),
    "mismatch_kl": rollouts(every(lambda r: {"trainer_logprobs": [v - 0.16 for v in r.logprobs]})),
    "mismatch_growth": rollouts(drifting_apart),
    "truncation": rollouts(cut_off),
    "repetition": rollouts(edit(text="again and again " * 200)),
    "script_mixing": rollouts(mixed_scripts),
    "reward_length_correlation": rollouts(length_pays, "family_length_correlation"),
    "family_length_correlation": rollouts(length_pays_in_one_family),
    "unsolved_length": rollouts(long_wrong_answers),
    "stuck_groups": rollouts(stuck, "truncation"),
    "capped_weights": rollouts(every(lambda r: {"importance_weights": [9.0] * len(r.tokens)})),
    "largest_weight": rollouts(heavy),
    "entropy_kept": rollouts(collapsed_entropy),
    "trained_share": rollouts(every(lambda r: {"advantage": None})),
}  # fmt: skip
