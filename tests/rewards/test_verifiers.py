import pytest

from longstride.errors import DataError
from longstride.rewards.verifiers import accepts, verifier_of
from schemas.rows import RLPrompt


def prompt(verifier="exact_match", answer="a b"):
    return RLPrompt(id="p7", prompt="?", answer=answer, family="mine", verifier=verifier, entry={})


@pytest.mark.parametrize(("answer", "right"), [("a b", True), (" a  b\n", True), ("ab", False)])
def test_exact_match_ignores_only_the_amount_of_blanks(answer, right):
    assert accepts(prompt(), answer) is right


def test_an_unknown_verifier_is_named_with_the_prompt():
    with pytest.raises(DataError, match=r"p7 names verifier 'oracle'; known are .*exact_match"):
        accepts(prompt("oracle"), "x")


@pytest.mark.parametrize(
    ("answer", "right"),
    [
        ("B", True),
        ("b", True),
        ("(B)", True),
        ("B) nine", True),
        ("nine", True),
        ("Nine.", True),
        ("The answer is B", True),
        ("answer: (b)", True),
        ("A", False),
        ("A or B", False),
        ("B) eight", False),
        ("A B C D", False),
        ("eight", False),
        ("", False),
        ("Z", False),
    ],
)
@pytest.mark.parametrize("reference", ["B", "nine"])
def test_a_choice_is_named_by_its_letter_or_its_content_and_by_one_only(answer, right, reference):
    choices = {"choices": ["eight", "nine", "ten", "a dozen"]}
    one = prompt("choice", reference).model_copy(update={"entry": choices})
    assert accepts(one, answer) is right


@pytest.mark.parametrize("entry", [{}, {"choices": ["one"]}, {"choices": ["x", "X", "a b"]}])
def test_a_choice_without_proper_options_is_a_fault_of_the_data(entry):
    with pytest.raises(DataError, match="p7"):
        accepts(prompt("choice").model_copy(update={"entry": entry}), "A")


def test_versions_name_the_package_that_scores():
    assert verifier_of(prompt("reasoning_gym")).version().startswith("reasoning-gym 0.")
