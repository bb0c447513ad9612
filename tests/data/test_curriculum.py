"""Which prompts a batch draws: by weight, by schedule, and no longer once they are easy."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longstride.data.curriculum import PromptDraw
from longstride.errors import DataError
from schemas.curriculum import CurriculumConfig, ModelJudged, PassHistory, Ramp
from schemas.rows import RLPrompt


def prompts(family, count, judge="rule"):
    return [
        RLPrompt(id=f"{family}-{n}", prompt="?", answer="!", family=family,
                 verifier="exact_match", entry={}, judge=judge)
        for n in range(count)
    ]  # fmt: skip


def drawn(pool, count=400, round_number=1, retired=(), seed=3, **config):
    draw = PromptDraw(
        pool, CurriculumConfig(**config), round_number=round_number, retired=set(retired),
        seed=seed,
    )  # fmt: skip
    return [draw.next() for _ in range(count)]


def test_without_families_every_prompt_comes_once_before_any_comes_twice():
    pool = prompts("sums", 30) + prompts("words", 10)
    first = drawn(pool, 40)
    assert {p.id for p in first} == {p.id for p in pool}
    assert drawn(pool, 40) == first
    assert drawn(pool, 40, seed=4) != first


def test_families_are_drawn_by_weight_and_not_by_their_number_of_prompts():
    pool = prompts("sums", 300) + prompts("words", 3)
    counts = Counter(p.family for p in drawn(
        pool, 4000, families={"sums": {"weight": 1}, "words": {"weight": 3}}
    ))  # fmt: skip
    assert counts["words"] / 4000 == pytest.approx(0.75, abs=0.03)


def test_a_family_joins_in_its_first_round_and_grows_to_its_weight():
    pool = prompts("sums", 20) + prompts("words", 20)
    families = {"sums": {}, "words": {"first_round": 3, "full_round": 5, "weight": 1}}
    shares = [
        sum(p.family == "words" for p in drawn(pool, 3000, number, families=families)) / 3000
        for number in (1, 2, 3, 4, 5, 6)
    ]
    assert shares[:2] == [0, 0]
    assert shares[2:] == pytest.approx([0.25, 0.4, 0.5, 0.5], abs=0.04)


def test_prompts_that_a_model_judges_are_mixed_in_after_rules_alone():
    pool = prompts("sums", 20) + prompts("essays", 5, "model")
    config = {"model_judged": ModelJudged(first_round=2, full_round=3, share=0.4)}
    shares = [
        sum(p.judge == "model" for p in drawn(pool, 3000, number, **config)) / 3000
        for number in (1, 2, 3)
    ]
    assert shares[0] == 0
    assert shares[1:] == pytest.approx([0.2, 0.4], abs=0.03)


def test_a_prompt_that_was_solved_often_enough_retires_for_good():
    history = PassHistory()
    for _ in range(8):
        history.record("sums-0", True)
        history.record("sums-1", False)
    for _ in range(3):
        history.record("sums-2", True)
    config = CurriculumConfig(retire_pass_rate=0.9, retire_samples=8)
    retired = history.retired(config)
    assert retired == {"sums-0"}
    assert history.retired(CurriculumConfig()) == set()
    assert "sums-0" not in {p.id for p in drawn(prompts("sums", 4), retired=retired)}


@pytest.mark.parametrize(
    ("pool", "config", "problem"),
    [
        ([], {}, "no RL prompts"),
        (prompts("sums", 2), {"families": {"summs": {}}}, r"names \['summs'\]"),
        (prompts("a", 1) + prompts("b", 1), {"families": {"a": {}}}, r"nothing about \['b'\]"),
        (prompts("a", 1, "model"), {}, "does not say when they join"),
        (prompts("a", 1), {"model_judged": {}}, "no prompt is judged by a model"),
        (prompts("a", 1), {"families": {"a": {"first_round": 2}}}, "scheduled that early"),
        (prompts("a", 1, "model"), {"model_judged": {"first_round": 2}}, "scheduled that early"),
    ],
)
def test_a_curriculum_that_could_not_be_honoured_is_refused(pool, config, problem):
    with pytest.raises(DataError, match=problem):
        drawn(pool, **config)


def test_a_round_whose_prompts_have_all_retired_says_so():
    with pytest.raises(DataError, match=r"2 of 2 are retired at retire_pass_rate=0\.9"):
        drawn(prompts("a", 2), retired=["a-0", "a-1"], retire_pass_rate=0.9)


@given(st.integers(1, 20), st.integers(0, 20), st.integers(1, 45))
def test_a_ramp_never_falls_and_ends_at_one(first, length, number):
    ramp = Ramp(first_round=first, full_round=first + length)
    assert 0 <= ramp.at(number) <= ramp.at(number + 1) <= 1
    assert ramp.at(first + length) == 1
    assert (ramp.at(number) == 0) == (number < first)


def test_a_ramp_that_goes_down_is_refused():
    with pytest.raises(ValidationError, match="a ramp goes up"):
        Ramp(first_round=3, full_round=2)
