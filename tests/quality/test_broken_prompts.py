"""E4: faults of RL prompts, each seen by exactly its check."""

import json

import pytest
from quality_parts import judge, rewrite

from longstride.quality import measure_prompts
from longstride.quality.gate import _open
from longstride.quality.measure_prompts import _unverifiable
from longstride.quality.subject import Subject
from longstride.quality.suites import load_suite, resolve
from schemas.rows import RLPrompt


def failed(parts, change, out, recipe=None):
    path = rewrite(parts["prompts"], out / "p", "prompts.jsonl", RLPrompt, change, "prompts")
    subject = Subject(
        "rl-prompts", recipe or parts.recipe, _open(path, "prompts"), _open(parts["chat"], "chat")
    )
    outcome = judge(resolve(load_suite("E4"), subject.recipe), measure_prompts.measure(subject))
    return {name for name, passed in outcome.items() if not passed}


def edit(**changes):
    return lambda rows: [rows[0].model_copy(update=changes), *rows[1:]]


def taught(parts):
    line = (parts["chat"] / "examples.jsonl").read_text().splitlines()[0]
    return json.loads(line)["messages"][0]["content"]


CASES = {
    "ids_unique": lambda rows: [rows[0].model_copy(update={"id": rows[1].id}), *rows[1:]],
    "answer_verifies": edit(answer="no number"),
    "verifiable_type": edit(prompt="Prove that 4 + 5 is 9."),
    "duplicates": lambda rows: [rows[0].model_copy(update={"prompt": rows[1].prompt}), *rows[1:]],
    "pass_rate_measured": edit(pass_rate=None),
    "pass_rate_in_band": edit(pass_rate=1.0),
    "kept_share": lambda rows: rows[:4][:4],
    "batch_coverage": lambda rows: rows[:3],
    "families_known": edit(family="gcd", verifier="exact_match"),
}
ALONG = {"batch_coverage": {"kept_share"}, "kept_share": set()}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_of_prompts_fails_its_check_and_no_other(parts, tmp_path, name):
    recipe = parts.recipe
    if name == "kept_share":
        recipe = recipe.model_copy(deep=True)
        recipe.quality.thresholds["E4/kept_share"] = 0.5
    found = failed(parts, CASES[name], tmp_path, recipe)
    assert name in found
    assert found <= {name} | ALONG.get(name, set())


def test_a_verifier_that_accepts_anything_is_seen(parts, tmp_path, monkeypatch):
    import longstride.rewards.verifiers as verifiers

    monkeypatch.setattr(verifiers, "accepts", lambda prompt, answer: True)
    assert failed(parts, lambda rows: rows, tmp_path) == {"wrong_answers_rejected"}


def test_a_prompt_of_sft_is_seen(parts, tmp_path):
    assert failed(parts, edit(prompt=taught(parts)), tmp_path) == {"sft_prompts"}


def test_a_benchmark_problem_is_seen(parts, tmp_path):
    from longstride.data.held_out import benchmark_problems

    problem = benchmark_problems(parts.recipe)[3].prompt
    assert failed(parts, edit(prompt=problem), tmp_path) == {"benchmark_problems"}


def test_a_family_without_prompts_is_seen(parts, tmp_path):
    recipe = parts.recipe.model_copy(deep=True)
    recipe.tasks.append(recipe.tasks[0].model_copy(update={"name": "gcd"}))
    monkey = pytest.MonkeyPatch()
    monkey.setattr("longstride.data.held_out.benchmark_problems", lambda recipe: [])
    found = failed(parts, lambda rows: rows, tmp_path, recipe)
    monkey.undo()
    assert found == {"families_present", "family_shares"}


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
