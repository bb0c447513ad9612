import re
from collections import Counter

import pytest

from benchmarks.figure2.problems import (
    Chances,
    examples,
    marker_tokens,
    problem,
    problems,
    use_of,
)
from longstride.data.traces import MARKERS
from longstride.rewards.verifiers import accepts
from longstride.tokens.chat import parse_answer
from longstride.tokens.tokenizer import Tokenizer
from schemas.model import TokenizerConfig

STEP = re.compile(r"(-?\d+)([+-])(\d+)=(-?\d+)")


def test_the_reference_answer_is_what_python_makes_of_the_expression():
    for one in problems(300, "rl", 0):
        assert int(one.answer) == eval(one.prompt)


def test_the_verifier_takes_the_reference_and_nothing_near_it():
    one = problem(["3", "+", "8", "-", "2", "+", "5"])
    assert one.answer == "14"
    assert accepts(one, "14") is True
    assert [accepts(one, wrong) for wrong in ("13", "15", "-14", "114", "1 4", "")] == [False] * 6


def test_no_two_uses_share_a_problem():
    sets = {use: {p.prompt for p in problems(400, use, 0)} for use in ("held-out", "rl", "sft")}
    assert all(len(found) == 400 for found in sets.values())
    assert not sets["held-out"] & sets["rl"]
    assert not sets["held-out"] & sets["sft"]
    assert not sets["rl"] & sets["sft"]


def test_all_examples_are_about_problems_of_their_own():
    asked = [example.messages[0].content.removeprefix("Check ") for example in examples_of(400)]
    assert {use_of(text) for text in asked} == {"sft"}


def test_unasked_examples_seldom_recheck_and_asked_ones_always_do():
    found = Counter(
        (example.messages[0].content.startswith("Check "), example.reflection)
        for example in examples_of(8000)
    )
    assert found[True, False] == 0
    assert found[True, True] == pytest.approx(4000, abs=200)
    unasked = found[False, True] / (found[False, True] + found[False, False])
    assert 0.02 < unasked < 0.04


def test_a_recheck_works_the_problem_out_and_is_right():
    for example in (e for e in examples_of(600) if e.reflection):
        answer = parse_answer(example.messages[1].content)
        expression = example.messages[0].content.removeprefix("Check ")
        assert int(answer.answer) == eval(expression)
        steps = STEP.findall(answer.thinking.split(maxsplit=2)[2])
        assert len(steps) == 3
        for left, sign, right, result in steps:
            assert eval(f"{left}{sign}{right}") == int(result)


def test_quick_answers_are_right_as_often_as_chance_says():
    quick = [e for e in examples_of(8000) if not e.reflection]
    right = [int(parse_answer(e.messages[1].content).answer) == eval(e.messages[0].content)
             for e in quick]  # fmt: skip
    assert sum(right) / len(right) == pytest.approx(0.1, abs=0.02)


def test_every_marker_is_one_token_and_another_vocabulary_is_refused(tmp_path):
    words = [f"1 {marker} 1" for marker in MARKERS] * 50
    tokenizer = Tokenizer.train(words, TokenizerConfig(vocab_size=320), tmp_path / "a")
    assert sorted(marker_tokens(tokenizer).values()) == ["However", "Recheck", "Wait"]
    bytes_only = Tokenizer.train(["1 2 3"], TokenizerConfig(vocab_size=300), tmp_path / "b")
    with pytest.raises(ValueError, match="enlarge the tokenizer"):
        marker_tokens(bytes_only)


def examples_of(count):
    return list(examples(count, 7, Chances()))
