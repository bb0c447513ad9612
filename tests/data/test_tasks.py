import pytest
from data_parts import chain_sum
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.data.tasks import (
    UNSAFE_FAMILIES,
    allocate,
    draw,
    is_sound,
    problems,
    split_of,
)
from longstride.errors import DataError, RecipeError
from longstride.rewards.verifiers import accepts
from schemas.data import TaskFamily

FAMILY = TaskFamily.model_validate(chain_sum(2, 3, 4))


@settings(max_examples=15, deadline=None)
@given(seeds=st.lists(st.integers(0, 2**31), min_size=3, max_size=3), level=st.integers(0, 2))
def test_no_problem_is_in_two_splits_whatever_the_seeds(seeds, level):
    sets = [
        {prompt.prompt for prompt in problems(FAMILY, level, 25, seed, split)}
        for seed, split in zip(seeds, ("sft", "rl", "benchmark"), strict=True)
    ]
    assert sum(map(len, sets)) == len(set.union(*sets)) == 75


def test_problems_are_distinct_repeatable_and_differ_by_seed():
    first = problems(FAMILY, 2, 50, 1, "rl")
    assert len({prompt.id for prompt in first}) == len({prompt.prompt for prompt in first}) == 50
    assert first == problems(FAMILY, 2, 50, 1, "rl")
    assert first != problems(FAMILY, 2, 50, 2, "rl")
    assert first[:20] == problems(FAMILY, 2, 20, 1, "rl")


def test_a_small_space_yields_what_exists():
    everything = [len(problems(FAMILY, 0, 500, 0, s)) for s in ("sft", "rl", "benchmark")]
    assert sum(everything) == 200  # 10 x 10 digits x 2 operators
    assert min(everything) >= 40 and everything[0] > max(everything[1:])


def test_a_space_with_next_to_nothing_is_refused():
    one = {"min_terms": 1, "max_terms": 1, "min_digits": 1, "max_digits": 1}
    family = TaskFamily.model_validate({"name": "chain_sum", "levels": [{"parameters": one}]})
    with pytest.raises(DataError, match=r"has only . distinct usable problems in the benchmark"):
        problems(family, 0, 10, 0, "benchmark")


@pytest.mark.parametrize("name", sorted(UNSAFE_FAMILIES))
def test_unsafe_families_are_refused_with_the_reason(name):
    family = TaskFamily.model_validate({"name": name, "levels": [{"parameters": {}}]})
    with pytest.raises(RecipeError, match=UNSAFE_FAMILIES[name]):
        problems(family, 0, 1, 0, "rl")


def test_an_unknown_family_is_refused_with_a_suggestion():
    family = TaskFamily.model_validate({"name": "chain_sums", "levels": [{"parameters": {}}]})
    with pytest.raises(RecipeError, match=r"did you mean.*'chain_sum'"):
        problems(family, 0, 1, 0, "rl")


@pytest.mark.parametrize("parameters", [{"no_such_option": 1}, {"min_terms": 5, "max_terms": 2}])
def test_bad_parameters_are_refused_by_family_and_level(parameters):
    family = TaskFamily.model_validate(
        {"name": "chain_sum", "levels": [{"parameters": parameters}]}
    )
    with pytest.raises(RecipeError, match="'chain_sum', level 0: reasoning-gym refuses"):
        problems(family, 0, 1, 0, "rl")


def test_a_problem_whose_reference_is_wrong_or_whose_scorer_takes_anything_is_unsound():
    prompt = problems(FAMILY, 0, 1, 0, "rl")[0]
    assert is_sound(prompt)
    assert not is_sound(prompt.model_copy(update={"answer": "12345"}))
    anything = {"answer": "", "verifier": "exact_match"}
    assert not is_sound(prompt.model_copy(update={**anything, "verifier": "reasoning_gym"}))


def test_trailing_garbage_is_wrong_where_a_scorers_rounding_lets_it_pass():
    parameters = {"min_word_len": 6, "max_word_len": 6}
    family = TaskFamily.model_validate(
        {"name": "spell_backward", "levels": [{"parameters": parameters}]}
    )
    prompts = problems(family, 0, 20, 0, "rl")
    assert len(prompts) == 20
    assert not any(accepts(prompt, f"{prompt.answer}x") for prompt in prompts)


def test_blanks_and_case_do_not_move_a_question_to_another_split():
    assert split_of("What is  1 + 1?\n") == split_of("what is 1 + 1?")


@given(
    total=st.integers(0, 1000),
    weights=st.lists(st.floats(0.01, 100), min_size=1, max_size=9),
)
def test_an_allocation_sums_up_and_is_within_one_of_its_share(total, weights):
    shares = allocate(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1 + 1e-6


def test_what_a_small_level_lacks_comes_from_the_others():
    drawn = draw([FAMILY], 900, 0, "sft")
    assert len(drawn) == len({prompt.prompt for prompt in drawn}) == 900
    by_level = [sum(p.level == level for p in drawn) for level in range(3)]
    assert by_level[0] < 150 and min(by_level[1:]) > 370


def test_levels_that_overlap_share_no_problem():
    levels = [
        {"parameters": {"min_terms": 2, "max_terms": m, "min_digits": 1, "max_digits": 1}}
        for m in (2, 3)
    ]
    family = TaskFamily.model_validate({"name": "chain_sum", "levels": levels})
    drawn = draw([family], 300, 0, "sft")
    assert len({prompt.prompt for prompt in drawn}) == len(drawn) == 300
