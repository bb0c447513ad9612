from pathlib import Path

import pytest
from pydantic import ValidationError

from longstride.recipe.loading import load_recipe
from longstride.recipe.notices import notices
from schemas.curriculum import CurriculumConfig
from schemas.stages import RewardConfig, RLStage

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


def of(*overrides):
    return notices(load_recipe("tiny", list(overrides), [RECIPES]))


def test_one_update_a_batch_never_leaves_the_policy_that_it_is_compared_with():
    (said,) = of("rl.updates_per_batch=1")
    assert "every ratio is 1" in said
    assert of("rl.updates_per_batch=1", "rl.algorithm.anchor=rollout") == of() == []


def test_a_remedy_that_lowers_a_cap_which_is_not_there_is_said():
    (said,) = of("rl.algorithm={kind: dapo}")
    assert "dapo has not" in said
    assert of("rl.algorithm={kind: dapo}", "ladder.remedy_cap_factor=1") == []


@pytest.mark.parametrize(
    ("contract", "values", "problem"),
    [
        (RewardConfig, {"overlong_share": 0, "overlong": 0.5}, "never paid"),
        (CurriculumConfig, {"retire_samples": 4}, "without retire_pass_rate"),
        (RLStage, {"dynamic_sampling": False, "max_refills": 5}, "keeps every group"),
        (RLStage, {"dynamic_sampling": False, "exhaustion": "stop"}, "keeps every group"),
        (RLStage, {"rounds": 2, "curriculum": {"families": {"a": {"first_round": 3}}}},
         "begin after the last of 2 rounds"),
        (RLStage, {"algorithm": {"kind": "cispo", "sample_share": 0.3}}, "aggregation=combined"),
    ],
)  # fmt: skip
def test_a_setting_that_would_have_no_effect_is_refused(contract, values, problem):
    with pytest.raises(ValidationError, match=problem):
        contract(**values)


def test_a_setting_that_has_one_is_taken():
    RewardConfig(overlong_share=0, overlong=0.5, repetition_is_overlong=True)
    RLStage(dynamic_sampling=False)
    RLStage(algorithm={"kind": "cispo", "aggregation": "combined", "sample_share": 0.3})


def test_a_repetition_rule_that_no_answer_is_long_enough_for_is_said():
    (said,) = of("rollout.repetition_run=80")
    assert "never fit into the last ladder window of 80" in said
    assert of("rollout.repetition_run=79") == []
