"""The page of all checks is the one that the suites give."""

from pathlib import Path

from longstride.quality.catalogue import catalogue


def test_the_page_of_checks_equals_the_suites():
    assert Path("docs/quality-gates.md").read_text() == catalogue()
