"""E4: types of problems that cannot be verified."""

import pytest

from longstride.quality.measure_prompts import _unverifiable, _verifier_facts, count_tests
from schemas.rows import RLPrompt


@pytest.mark.parametrize(
    ("text", "unverifiable"),
    [
        ("Prove that there are infinitely many primes.", True),
        ("True or false: 7 is prime?", True),
        ("Which is larger?\nA) 3\nB) 4\nC) 5", True),
        ("(a) Add 3 and 4.\n(b) Double it.", True),
        ("State the final answer to the following arithmetic problem: 4 + 3 =", False),
        ("Sort these: 3) is not a list marker in running text", False),
    ],
)
def test_types_that_cannot_be_verified_are_recognised(text, unverifiable):
    assert _unverifiable(text) is unverifiable


def prompt(**changes):
    made = {"id": "p", "prompt": "Write f.", "answer": "x", "family": "f", "level": 0,
            "verifier": "exact_match", "entry": {}}  # fmt: skip
    return RLPrompt(**{**made, **changes})


@pytest.mark.parametrize(
    ("verifier", "entry", "tests"),
    [
        ("code", {"cases": [{"input": "1", "output": "2"}] * 4}, 4),
        ("code", {"tests": ["assert f(1) == 2", "assert f(2) == 3"]}, 2),
        ("code", {"tests": "def check(f):\n    assert f(1) == 2\n    assert f(2) == 3\n"}, 2),
        ("software_engineering", {"fail_to_pass": ["a"], "pass_to_pass": ["b", "c"]}, 3),
        ("exact_match", {"tests": ["assert f(1) == 2"]}, None),
    ],
)
def test_tests_of_a_program_are_counted_however_they_are_written(verifier, entry, tests):
    assert count_tests(prompt(verifier=verifier, entry=entry)) == tests


@pytest.mark.parametrize(("verifier", "sound"), [("consistency", True), ("exact_match", False)])
def test_a_prompt_that_a_model_judges_needs_a_verifier_of_models_and_costs_no_call(verifier, sound):
    asked = prompt(judge="model", verifier=verifier)
    assert _verifier_facts(asked) == {"answer_verifies": sound, "wrong_answer_accepted": None}
