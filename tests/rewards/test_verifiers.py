import pytest

from longstride.errors import DataError
from longstride.rewards.verifiers import VERIFIERS, accepts, verifier_of
from schemas.rows import RLPrompt


def prompt(verifier="exact_match", answer="a b"):
    return RLPrompt(id="p7", prompt="?", answer=answer, family="mine", verifier=verifier, entry={})


@pytest.mark.parametrize(("answer", "right"), [("a b", True), (" a  b\n", True), ("ab", False)])
def test_exact_match_ignores_only_the_amount_of_blanks(answer, right):
    assert accepts(prompt(), answer) is right


def test_an_unknown_verifier_is_named_with_the_prompt():
    with pytest.raises(DataError, match=r"p7 names verifier 'oracle'; known are .*exact_match"):
        accepts(prompt("oracle"), "x")


def test_an_error_outside_the_verifiers_list_propagates(monkeypatch):
    def fail(prompt, answer):
        raise MemoryError

    broken = VERIFIERS["exact_match"]
    monkeypatch.setitem(
        VERIFIERS,
        "exact_match",
        type(broken)("exact_match", fail, (ValueError,), str, lambda: None),
    )
    with pytest.raises(MemoryError):
        accepts(prompt(), "x")


def test_versions_name_the_package_that_scores():
    assert verifier_of(prompt("reasoning_gym")).version().startswith("reasoning-gym 0.")
