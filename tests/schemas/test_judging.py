"""What a recipe may say about a model that judges."""

from pathlib import Path

import pytest

from longstride.errors import RecipeError
from longstride.recipe.loading import load_recipe
from longstride.recipe.resolved import parse_compact
from schemas.base import canonical_json
from schemas.judging import GenerativeJudgeConfig

RECIPES = [Path(__file__).parents[2] / "pipelines" / "recipes"]
JUDGE = ["rewards.model.url=http://judge:8000/v1", "rewards.model.model=judge"]


def test_no_model_judges_unless_the_recipe_names_one():
    assert load_recipe("tiny", [], RECIPES).rewards.model is None


def test_a_judge_survives_the_pipeline():
    overrides = [*JUDGE, "rl.curriculum.model_judged.share=0.2", "rewards.model.limits.max_calls=9"]
    recipe = load_recipe("tiny", overrides, RECIPES)
    assert recipe.rewards.model.limits.max_calls == 9
    assert parse_compact(canonical_json(recipe.compact())) == recipe


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["rl.curriculum.model_judged.share=0.2"], r"set rewards\.model\.url"),
        (["rewards.model.model=judge"], r"url"),
        ([*JUDGE, "rewards.model.url=judge:8000"], r"url"),
        ([*JUDGE, "rewards.model.url=http://user:secret@judge"], r"url"),
        ([*JUDGE, "rewards.model.url=http://judge/v1?key=secret"], r"url"),
        ([*JUDGE, "rewards.model.url=http://judge:99999"], "no request can hold"),
        ([*JUDGE, "rewards.model.url=http://judge/\u00e9"], "no request can hold"),
        ([*JUDGE, "rewards.model.api_key_variable=sk-123"], r"api_key_variable"),
        ([*JUDGE, "rewards.model.sampling.extra.seed=1"], r"extra sets \['seed'\]"),
        ([*JUDGE, "rewards.model.consistency.values=[0, 0.5, 0.4, 0.8, 1]"], "must ascend"),
        ([*JUDGE, "rewards.model.consistency.values=[0, 0.5, 1]"], "values"),
        ([*JUDGE, "rewards.model.pairwise.agreement=0.5"], "agreement"),
    ],
)
def test_a_judge_that_cannot_work_is_refused(overrides, message):
    with pytest.raises(RecipeError, match=message):
        load_recipe("tiny", overrides, RECIPES)


def test_a_minimal_judge_needs_an_address_and_a_name():
    assert GenerativeJudgeConfig(url="https://judge", model="m").pairwise.agreement == 1.0
