"""E4: types of problems that cannot be verified."""

import pytest

from longstride.quality.measure_prompts import _unverifiable


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
