"""Dynamic sampling against a scripted policy whose every answer is known."""

from pathlib import Path

import numpy as np
import pytest
from training_parts import trained_tokenizer

from longstride.data.tasks import problems
from longstride.recipe.loading import load_recipe
from longstride.rewards.judging import ComposedJudge, RuleJudge
from longstride.rewards.protocol import Score
from longstride.rollout.protocol import Sample
from longstride.tokens.chat import render_prompt
from longstride.training.collecting import (
    Batch,
    Collector,
    UnusableRewards,
    batch_from_json,
    batch_to_json,
)
from longstride.training.judging import RoundJudge
from schemas.algorithms import AdvantageConfig
from schemas.curriculum import CurriculumConfig
from schemas.rows import Message
from schemas.verification import JudgingConfig

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


JUDGE = RuleJudge(JudgingConfig())


@pytest.fixture(scope="module", autouse=True)
def verifier_processes():
    yield
    JUDGE.close()


def collect(recipe, prompts, right, judge=None, **options):
    tokenizer = trained_tokenizer()
    policy = ScriptedPolicy(tokenizer, prompts, right)
    collector = Collector(
        recipe, prompts, policy, tokenizer, 40, 1, RoundJudge(judge or JUDGE, None)
    )
    return collector.collect(0, **options), policy


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


def test_a_batch_that_was_interrupted_after_a_wave_ends_as_if_it_had_not_been(recipe, prompts):
    hard = {p.id for p in prompts[::2]}

    def right(prompt, n):
        return prompt.id not in hard and n < 2

    waves = []
    whole, _ = collect(
        recipe, prompts, right, after_wave=lambda batch: waves.append(batch_to_json(batch))
    )
    assert len(waves) > 1
    resumed, policy = collect(recipe, prompts, right, begun=batch_from_json(waves[0]))
    assert batch_to_json(resumed) == batch_to_json(whole)
    assert len(policy.asked) == len(waves) - 1


def test_the_reason_why_a_group_teaches_nothing_is_counted(recipe, prompts):
    right = {p.id for p in prompts[::2]}
    batch, _ = collect(recipe, prompts, lambda prompt, n: prompt.id in right)
    assert set(batch.dropped_for) == {"all_right", "all_wrong"}
    assert sum(batch.dropped_for.values()) == batch.dropped_groups


def test_advantages_divided_by_the_batch_spread_have_its_variance_over_the_whole_batch(
    recipe, prompts
):
    rl = recipe.rl.model_copy(update={"advantage": AdvantageConfig(scale="batch")})
    batch, _ = collect(
        recipe.model_copy(update={"rl": rl}), prompts, lambda prompt, n: n <= len(prompt.id) % 3
    )
    rewards = np.array([r.reward for r in batch.kept])
    centred = np.array([r.reward - np.mean([o.reward for o in batch.kept if o.group == r.group])
                        for r in batch.kept])  # fmt: skip
    expected = centred / rewards.std()
    assert [r.advantage for r in batch.kept] == pytest.approx(expected)


def test_answers_of_a_family_with_a_window_of_its_own_are_sampled_under_it(recipe, prompts):
    curriculum = CurriculumConfig(families={prompts[0].family: {"window": 12}})
    rl = recipe.rl.model_copy(update={"curriculum": curriculum})
    windows = []

    class Watched(ScriptedPolicy):
        def generate(self, prompts, samples_per_prompt, settings, seed, progress=None):
            windows.append(settings.max_new_tokens)
            return super().generate(prompts, samples_per_prompt, settings, seed, progress)

    tokenizer = trained_tokenizer()
    policy = Watched(tokenizer, prompts, lambda prompt, n: n == 0)
    changed = recipe.model_copy(update={"rl": rl})
    batch = Collector(changed, prompts, policy, tokenizer, 40, 1, RoundJudge(JUDGE, None)).collect(
        0
    )
    assert windows == [12]
    assert {rollout.window for rollout in batch.kept} == {12}


class Broken:
    """A reward model that gives no number, to prompts that ask for one."""

    def judge_all(self, submissions):
        return [Score(float("nan"), correct=True) for _ in submissions]


def test_a_reward_that_is_not_finite_is_refused_by_name_and_its_wave_is_kept(recipe, prompts):
    asked = [prompt.model_copy(update={"judge": "model"}) for prompt in prompts]
    rl = recipe.rl.model_copy(
        update={"curriculum": CurriculumConfig(model_judged={"first_round": 1})}
    )
    judge = ComposedJudge(JUDGE, Broken())
    mixed = recipe.model_copy(update={"rl": rl})
    with pytest.raises(UnusableRewards, match=r"reward of prompt .* is nan .* mend the verif") as e:
        collect(mixed, [*prompts, *asked], lambda prompt, n: n == 0, judge)
    assert len(e.value.rollouts) == 24
    assert any(rollout.reward is None for rollout in e.value.rollouts)


def test_an_empty_batch_survives_its_file():
    assert batch_from_json(batch_to_json(Batch())) == Batch()
