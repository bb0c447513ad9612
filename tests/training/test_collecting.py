"""Dynamic sampling against a scripted policy whose every answer is known."""

from pathlib import Path

import pytest
from training_parts import trained_tokenizer

from longstride.data.tasks import problems
from longstride.recipe.loading import load_recipe
from longstride.rollout.protocol import Sample
from longstride.tokens.chat import render_prompt
from longstride.training.collecting import collect_batch
from schemas.rows import Message

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


class ScriptedPolicy:
    """Answers right or wrong as told, by prompt and sample."""

    def __init__(self, tokenizer, prompts, right):
        self.tokenizer = tokenizer
        self.answers = {
            tuple(render_prompt(tokenizer, [Message(role="user", content=p.prompt)])): p
            for p in prompts
        }
        self.right = right
        self.asked = []

    def generate(self, prompts, samples_per_prompt, settings, seed, progress=None):
        self.asked.append([self.answers[tuple(ids)].id for ids in prompts])
        return [
            [self._sample(self.answers[tuple(ids)], n) for n in range(samples_per_prompt)]
            for ids in prompts
        ]

    def _sample(self, prompt, number):
        answer = prompt.answer if self.right(prompt, number) else "oops"
        tokens = [
            self.tokenizer.think_id, *self.tokenizer.encode("x"), self.tokenizer.end_think_id,
            *self.tokenizer.encode(answer), self.tokenizer.end_id,
        ]  # fmt: skip
        return Sample(tokens, [-0.5] * len(tokens), "stop")


@pytest.fixture(scope="module")
def recipe():
    return load_recipe(
        "tiny",
        ["rl.groups_per_batch=6", "rl.group_size=4", "rl.max_refills=8", "rl.updates_per_batch=2"],
        [RECIPES],
    )


@pytest.fixture(scope="module")
def prompts(recipe):
    return problems(recipe.tasks[0], 0, 30, seed=1, split="rl")


def collect(recipe, prompts, right):
    tokenizer = trained_tokenizer()
    policy = ScriptedPolicy(tokenizer, prompts, right)
    batch = collect_batch(
        recipe, prompts, policy, tokenizer, window=40, round_number=1, batch_number=0
    )
    return batch, policy


def test_a_batch_holds_exactly_the_groups_asked_for_when_all_carry_signal(recipe, prompts):
    batch, policy = collect(recipe, prompts, lambda prompt, n: n == 0)
    assert (batch.kept_groups, batch.dropped_groups, batch.waves) == (6, 0, 1)
    assert len(batch.kept) == 24 and batch.dropped == []
    assert len(set(policy.asked[0])) == 6


def test_groups_without_spread_are_dropped_and_replaced_by_other_prompts(recipe, prompts):
    hard = {p.id for p in prompts[::2]}
    batch, policy = collect(recipe, prompts, lambda prompt, n: prompt.id not in hard and n < 2)
    assert batch.kept_groups == 6
    assert batch.dropped_groups == sum(len(wave) for wave in policy.asked) - 6
    assert not {r.prompt_id for r in batch.kept} & hard
    asked = [prompt for wave in policy.asked for prompt in wave]
    assert len(set(asked)) == len(asked)


def test_refilling_ends_after_its_limit_and_says_what_was_wasted(recipe, prompts):
    batch, policy = collect(recipe, prompts, lambda prompt, n: True)
    assert (batch.kept_groups, batch.waves) == (0, 9)
    assert batch.dropped_groups == 54
    assert all(rollout.advantage is None for rollout in batch.dropped)
    assert len(policy.asked) == 9


def test_without_dynamic_sampling_groups_without_spread_stay_with_advantage_zero(recipe, prompts):
    changed = recipe.model_copy(
        update={"rl": recipe.rl.model_copy(update={"dynamic_sampling": False})}
    )
    batch, _ = collect(changed, prompts, lambda prompt, n: True)
    assert (batch.kept_groups, batch.dropped_groups) == (6, 0)
    assert {rollout.advantage for rollout in batch.kept} == {0.0}


def test_the_sampled_ids_are_kept_and_never_encoded_again_from_text(recipe, prompts):
    batch, policy = collect(recipe, prompts, lambda prompt, n: n == 0)
    by_id = {p.id: p for p in prompts}
    for rollout in batch.kept:
        expected = policy._sample(by_id[rollout.prompt_id], rollout.sample)
        assert rollout.tokens == expected.tokens
        assert rollout.logprobs == expected.logprobs


def test_the_right_answer_of_a_group_has_the_advantage_root_three(recipe, prompts):
    batch, _ = collect(recipe, prompts, lambda prompt, n: n == 0)
    right = [r for r in batch.kept if r.correct]
    assert [r.advantage for r in right] == pytest.approx([3**0.5] * 6)
