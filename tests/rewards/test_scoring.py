import json
from pathlib import Path

import pytest

from longstride.rewards.scoring import overlong_penalty, score_answer
from schemas.rows import RLPrompt
from schemas.stages import RewardConfig

ORACLES = Path(__file__).parents[1] / "oracles" / "rl_oracles.json"
CONFIG = RewardConfig(correct=1.0, well_formed=0.1, overlong_share=0.25)


def prompt(**changes) -> RLPrompt:
    answer = changes.get("answer", "-2")
    values = {
        "id": "p",
        "prompt": "4 + 3 - 9 =",
        "answer": answer,
        "family": "chain_sum",
        "verifier": "reasoning_gym",
        "entry": {"question": "4 + 3 - 9 =", "answer": answer, "metadata": {}},
    }
    return RLPrompt.model_validate({**values, **changes})


def score(text, finish="stop", length=10, window=64, config=CONFIG, **changes):
    return score_answer(prompt(**changes), text, finish, length, window, config)


def test_the_overlong_penalty_matches_the_oracle():
    cases = {case["id"]: case for case in json.loads(ORACLES.read_text())["cases"]}
    case = cases["10_overlong_soft_punishment"]
    penalties = [overlong_penalty(*row) for row in case["inputs"]["rows"]]
    assert penalties == pytest.approx(case["expected"]["penalty"], abs=1e-12)


def test_a_penalty_that_is_off_is_nothing_however_long_the_answer():
    assert overlong_penalty(10_000, 64, 0.0) == 0.0


def test_a_right_answer_earns_every_component_once():
    result = score("<think>4+3=7 7-9=-2</think>-2", length=56)
    assert result.correct is True
    assert result.rewards == {"correct": 1.0, "well_formed": 0.1, "overlong": -0.5}
    assert result.reward == pytest.approx(0.6)


@pytest.mark.parametrize(
    "text",
    [
        "-2",
        "<think>x</think>",
        "<think>x</think> \n",
        "<think>x-2",
        "x</think>-2",
        "<think>x</think><think>y</think>-2",
        "<think>x<think>y</think>-2",
        "-2<think>x</think>-2",
        "",
    ],
)
def test_a_malformed_answer_is_wrong_even_when_the_number_is_right(text):
    result = score(text)
    assert result.correct is False
    assert result.rewards == {"correct": 0.0, "well_formed": 0.0, "overlong": 0.0}


@pytest.mark.parametrize("finish", ["length", "repetition"])
def test_an_answer_that_did_not_end_by_itself_is_wrong(finish):
    result = score("<think>x</think>-2", finish=finish, length=64)
    assert result.correct is False and result.reward == -1.0


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("-2", True),
        (" -2\n", True),
        ("-02", True),
        ("-2.0", True),
        ("-2.00", True),
        ("2", False),
        ("- 2", False),
        ("-2x", False),
        ("-2 or -3", False),
        ("minus two", False),
        ("-2.1", False),
        ("the answer is -2", False),
    ],
)
def test_numbers_are_judged_by_value_and_partial_credit_is_no_credit(answer, right):
    assert score(f"<think>x</think>{answer}").correct is right


def test_what_cannot_be_judged_has_no_reward_at_all():
    result = score("<think>x</think>1", family="gcd", entry={"no": "answer"})
    assert (result.correct, result.reward, result.rewards) == (None, None, {})


def test_a_malformed_answer_is_wrong_without_asking_the_verifier():
    assert score("no tags", family="gcd", entry={"no": "answer"}).correct is False


def test_the_worth_of_the_components_comes_from_the_recipe():
    config = RewardConfig(correct=2.0, well_formed=0.0, overlong_share=0.0)
    assert score("<think>x</think>-2", length=64, config=config).reward == 2.0
    assert score("<think>x</think>-3", length=64, config=config).reward == 0.0
