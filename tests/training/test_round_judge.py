"""A round whose prompts are judged by rules and by a model, with its length watch."""

import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "rewards" / "generative"))

from scripted_judge import by_worth, config, served
from test_collecting import RECIPES, ScriptedPolicy
from training_parts import trained_tokenizer

from longstride.data.tasks import problems
from longstride.errors import QualityGateBlocked
from longstride.recipe.loading import load_recipe
from longstride.training.collecting import Collector, batch_from_json, batch_to_json
from longstride.training.judging import open_round_judge

NUMBER = 2


def longer_is_better(text):
    """Quality of a bare number is 0.5; every word beside it adds to that, whatever it says."""
    right = 0.5 if re.fullmatch(r"-?\d+", text.split()[-1]) else 0.0
    return right + min(0.5, 0.1 * (len(text.split()) - 1))


class Talkative(ScriptedPolicy):
    """Pads its right answers by as many words as the sample's number."""

    def _sample(self, prompt, number):
        if self.right(prompt, number) and prompt.judge == "model":
            prompt = prompt.model_copy(update={"answer": "so " * number + prompt.answer})
        return super()._sample(prompt, number)


@pytest.fixture(scope="module")
def recipe():
    sizes = ["rl.groups_per_batch=6", "rl.group_size=4", "rl.max_refills=8",
             "rl.updates_per_batch=2"]  # fmt: skip
    return load_recipe("tiny", sizes, [RECIPES])


@pytest.fixture(scope="module")
def prompts(recipe):
    """Every second one asks for the model."""
    ruled = problems(recipe.tasks[0], 0, 24, seed=1, split="rl")
    asked = {"judge": "model", "verifier": "consistency"}
    return [p.model_copy(update=asked) if n % 2 else p for n, p in enumerate(ruled)]


@contextmanager
def collector(recipe, prompts, server, folder, state=None):
    rewards = recipe.rewards.model_copy(update={"model": config(server)})
    curriculum = recipe.rl.curriculum.model_validate({"model_judged": {"first_round": 1}})
    rl = recipe.rl.model_copy(update={"curriculum": curriculum})
    recipe = recipe.model_copy(update={"rewards": rewards, "rl": rl})
    tokenizer = trained_tokenizer()
    hard = {p.id for p in prompts[::3]}
    policy = Talkative(tokenizer, prompts, lambda p, n: n < 3 and p.id not in hard)
    with open_round_judge(recipe, NUMBER, prompts, folder, state) as judge:
        yield Collector(recipe, prompts, policy, tokenizer, 40, NUMBER, judge)


def test_each_prompt_is_judged_by_what_it_asks_for(recipe, prompts, tmp_path):
    with (
        served(by_worth(longer_is_better)) as server,
        collector(recipe, prompts, server, tmp_path) as own,
    ):
        batch = own.collect(0)
    kinds = {p.id: p.judge for p in prompts}
    ruled = [r for r in batch.rollouts if kinds[r.prompt_id] == "rule"]
    modelled = [r for r in batch.rollouts if kinds[r.prompt_id] == "model"]
    assert ruled and modelled
    assert {r.rewards["correct"] for r in ruled} == {0.0, 1.0}
    padded = [r.rewards["correct"] for r in modelled if r.sample == 2 and r.text.count("so")]
    assert padded and min(padded) > 0.5, "the model's grade counts, not the rule"
    assert server.calls > 0 and own.judge.metrics()["judge/calls"] == server.calls


def test_a_batch_that_was_stopped_between_waves_goes_on_to_the_same_scores(
    recipe, prompts, tmp_path
):
    """The judge's state travels with the batch: fresh processes, the same rewards and watch."""

    class Stopped(Exception):
        pass

    kept = {}

    def stop_after_the_first(batch):
        kept["batch"] = batch_to_json(batch)
        raise Stopped

    with served(by_worth(longer_is_better)) as server:
        with collector(recipe, prompts, server, tmp_path / "whole") as own:
            whole = own.collect(0)
        assert whole.waves > 1 and whole.judge
        with collector(recipe, prompts, server, tmp_path / "first") as own, pytest.raises(Stopped):
            own.collect(0, after_wave=stop_after_the_first)
        with collector(recipe, prompts, server, tmp_path / "second") as own:
            resumed = own.collect(0, begun=batch_from_json(kept["batch"]))
    assert resumed.judge == whole.judge
    assert [r.reward for r in resumed.rollouts] == [r.reward for r in whole.rollouts]


def test_the_watch_sees_every_wave_with_anchors_from_rules(recipe, prompts, tmp_path):
    with (
        served(by_worth(longer_is_better)) as server,
        collector(recipe, prompts, server, tmp_path) as own,
    ):
        batch = own.collect(0)
    watch = batch.judge["watch"]
    kinds = {p.id: p.judge for p in prompts}
    modelled = [r for r in batch.rollouts if kinds[r.prompt_id] == "model"]
    assert watch["unverified"] == len(modelled), "what only the model judged cannot be tested"
    assert set(watch["streams"]) == {"*", recipe.tasks[0].name}, "anchors can"
    assert batch.judge == own.judge.state()


def test_a_judge_that_falls_for_padding_is_refused_before_round_1(recipe, prompts, tmp_path):
    rewards = {"rewards": recipe.rewards.model_copy(update={"model": None})}
    with served(by_worth(lambda text: min(1.0, len(text) / 40))) as server:
        rewards["rewards"] = recipe.rewards.model_copy(update={"model": config(server)})
        changed = recipe.model_copy(update=rewards)
        with (
            pytest.raises(QualityGateBlocked),
            open_round_judge(changed, 1, prompts, tmp_path, None),
        ):
            raise AssertionError("the round began")


def test_without_a_model_nothing_is_kept_about_the_judge(recipe, prompts, tmp_path):
    ruled = [p for p in prompts if p.judge == "rule"]
    with open_round_judge(recipe, 1, ruled, tmp_path, None) as judge:
        assert judge.state() == {} and judge.metrics() == {}
    assert list(tmp_path.iterdir()) == []
