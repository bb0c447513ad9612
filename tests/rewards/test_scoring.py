import json
from pathlib import Path

import pytest

from longstride.rewards.judging import RuleJudge
from longstride.rewards.protocol import NotJudged, Score
from longstride.rewards.scoring import Sampled, overlong_penalty, score_answers
from schemas.rows import RLPrompt
from schemas.stages import RewardConfig
from schemas.verification import JudgingConfig

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


JUDGE = RuleJudge(JudgingConfig())


@pytest.fixture(scope="module", autouse=True)
def verifier_processes():
    yield
    JUDGE.close()


class Scripted:
    """Gives the same judgment to all, and keeps what it was asked."""

    def __init__(self, judgment):
        self.judgment = judgment
        self.asked = []

    def judge_all(self, submissions):
        self.asked += submissions
        return [self.judgment for _ in submissions]


def score(text, finish="stop", length=10, window=64, config=CONFIG, judge=JUDGE, **changes):
    sampled = Sampled(prompt(**changes), text, finish, length, window)
    return score_answers([sampled], judge, config)[0]


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


def test_what_cannot_be_judged_has_no_reward_at_all_and_says_why():
    result = score("<think>x</think>1", family="gcd", entry={"no": "answer"})
    assert (result.correct, result.reward, result.rewards) == (None, None, {})
    assert result.not_judged == "error"


@pytest.mark.parametrize("reason", ["timeout", "died", "unavailable", "budget", "malformed"])
def test_no_reason_for_not_judging_ever_becomes_a_reward(reason):
    result = score("<think>x</think>-2", judge=Scripted(NotJudged(reason, "")))
    assert (result.correct, result.reward, result.not_judged) == (None, None, reason)


def test_the_judge_sees_the_answer_alone_beside_the_whole_text():
    judge = Scripted(Score(1.0, correct=True))
    score("<think>x</think> -2\n", judge=judge, length=7)
    assert [(s.answer, s.text, s.tokens) for s in judge.asked] == [
        ("-2", "<think>x</think> -2\n", 7)
    ]


def test_part_of_a_score_counts_only_where_the_recipe_or_a_reward_model_says_so():
    half = Scripted(Score(0.5, correct=False))
    in_part = CONFIG.model_copy(update={"partial_credit": True})
    text = "<think>x</think>-2"
    assert score(text, judge=half).rewards["correct"] == 0.0
    assert score(text, judge=half, config=in_part).rewards["correct"] == 0.5
    assert score(text, judge=half).correct is False
    of_model = prompt().model_copy(update={"judge": "model"})
    sampled = Sampled(of_model, text, "stop", 10, 64)
    assert score_answers([sampled], half, CONFIG)[0].rewards["correct"] == 0.5


def test_a_floor_raises_the_sum_and_is_a_component_of_its_own():
    config = CONFIG.model_copy(update={"least": -0.4})
    result = score("<think>x", length=64, config=config)
    assert result.reward == pytest.approx(-0.4)
    assert result.rewards["overlong"] == -1.0
    assert sum(result.rewards.values()) == pytest.approx(result.reward)


def test_a_floor_that_nothing_can_reach_is_refused():
    with pytest.raises(ValueError, match=r"least=-2 is never reached"):
        RewardConfig(least=-2.0)


def test_a_malformed_answer_is_wrong_without_asking_the_verifier():
    assert score("no tags", family="gcd", entry={"no": "answer"}).correct is False


def test_the_worth_of_the_components_comes_from_the_recipe():
    config = RewardConfig(correct=2.0, well_formed=0.0, overlong_share=0.0)
    assert score("<think>x</think>-2", length=64, config=config).reward == 2.0
    assert score("<think>x</think>-3", length=64, config=config).reward == 0.0
