import random
import re

import pytest
from data_parts import chain_sum
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.data.tasks import problems
from longstride.data.traces import MARKERS, TRACE_WRITERS, NoTraceError, write_trace
from longstride.errors import DataError
from longstride.rewards.verifiers import accepts
from longstride.tokens.chat import parse_answer
from schemas.data import TaskFamily

PARAMETERS = {
    "chain_sum": {"min_terms": 2, "max_terms": 6, "allow_negation": True},
    "basic_arithmetic": {"operators": "+-"},
    "spell_backward": {},
    "count_bits": {"max_n": 1000},
    "number_sorting": {},
    "letter_counting": {},
    "gcd": {"max_numbers": 3},
}
FAMILIES = sorted(PARAMETERS)


def family_of(name, **parameters):
    return TaskFamily.model_validate({"name": name, "levels": [{"parameters": parameters}]})


@pytest.fixture(scope="module")
def pools():
    return {
        name: problems(family_of(name, **parameters), 0, 60, 11, "sft")
        for name, parameters in PARAMETERS.items()
    }


def value(expression):
    """Arithmetic by Python itself: the check shares no code with the writers."""
    return eval(expression, {"__builtins__": {}})


def holds(step):
    """Whether one step of a trace is true."""
    if "=" in step:
        left, _, right = step.rpartition("=")
        return value(left) == value(right)
    if "<" in step or ">" in step:
        sign = "<" if "<" in step else ">"
        numbers = [float(number) for number in step.split(sign)]
        return numbers == sorted(numbers, reverse=sign == ">")
    return True


def steps_of(text):
    return parse_answer(text).thinking.split(" ")


def test_every_writer_is_tested():
    assert sorted(TRACE_WRITERS) == FAMILIES


@pytest.mark.parametrize("name", FAMILIES)
def test_every_trace_is_well_formed_true_and_ends_in_an_answer_that_verifies(pools, name):
    for prompt in pools[name]:
        text = write_trace(prompt, random.Random(0), reflection=False)
        parsed = parse_answer(text)
        assert parsed.well_formed and accepts(prompt, parsed.answer) is True
        assert all(map(holds, steps_of(text))), text


@pytest.mark.parametrize("name", FAMILIES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_reflection_is_one_wrong_step_a_marker_the_right_step_and_nothing_else(pools, name, data):
    prompt = data.draw(st.sampled_from(pools[name]))
    rng = random.Random(data.draw(st.integers()))
    try:
        text = write_trace(prompt, rng, reflection=True)
    except NoTraceError as error:  # for example a word that is its own mirror image
        assert "no step that can be got wrong" in str(error)
        return
    steps = steps_of(text)
    places = [i for i, step in enumerate(steps) if step in MARKERS]
    plain = steps_of(write_trace(prompt, rng, reflection=False))
    assert len(places) == 1
    wrong, right = steps[places[0] - 1], steps[places[0] + 1]
    assert wrong != right
    assert steps[: places[0] - 1] + steps[places[0] + 1 :] == plain
    if "=" in right or "<" in right or ">" in right:
        assert not holds(wrong) and holds(right)


def test_all_markers_occur_and_waiting_is_the_most_common(pools):
    rng = random.Random(0)
    texts = [write_trace(p, rng, reflection=True) for p in pools["chain_sum"] for _ in range(5)]
    counts = {marker: sum(marker in text for text in texts) for marker in MARKERS}
    assert min(counts.values()) > 10 and counts["Wait,"] > 150


def test_a_three_term_sum_fits_thirty_tokens(tokenizer):
    family = TaskFamily.model_validate(chain_sum(3))
    for prompt in problems(family, 0, 50, 0, "sft"):
        text = write_trace(prompt, random.Random(0), reflection=False)
        assert re.fullmatch(r"<think>\S+ \S+</think>-?\d+", text)
        thinking, answer = parse_answer(text)[:2]
        assert len(tokenizer.encode(thinking)) + len(tokenizer.encode(answer)) + 3 <= 30


def test_expressions_beyond_plus_and_minus_are_refused_with_the_fix():
    prompts = problems(family_of("basic_arithmetic", operators="*"), 0, 5, 0, "sft")
    with pytest.raises(NoTraceError, match=r"holds more than \+ and -; set operators"):
        write_trace(prompts[0], random.Random(0), reflection=False)


def test_a_reference_that_the_steps_do_not_reach_is_refused(pools):
    prompt = pools["gcd"][0].model_copy(update={"answer": "12345"})
    with pytest.raises(NoTraceError, match="the reference is 12345"):
        write_trace(prompt, random.Random(0), reflection=False)


def test_a_family_without_a_writer_is_refused_with_those_that_have_one(pools):
    prompt = pools["gcd"][0].model_copy(update={"family": "caesar_cipher"})
    with pytest.raises(DataError, match=r"'caesar_cipher' has no trace writer.*'chain_sum'"):
        write_trace(prompt, random.Random(0), reflection=False)
