"""Great Expectations fails open in several ways; running a suite closes every one of them."""

import math
import os
from pathlib import Path

import pytest

from longstride.errors import GateCouldNotRun
from longstride.quality.frame import Measured
from longstride.quality.run_suite import rule_text, run_suite
from longstride.quality.suites import CheckSpec, Suite


def spec(name="small", **changes):
    values = {
        "name": name,
        "description": "a value that must stay small",
        "level": "rows",
        "column": "x",
        "expectation": "expect_column_values_to_be_between",
        "arguments": {"max_value": 5},
        "severity": "block",
        "origin": "here",
    }
    return CheckSpec.model_construct(**{**CheckSpec.model_validate(values).model_dump(), **changes})


def run(*specs, rows=None, summary=None, culprits=None, offenders=20):
    suite = Suite.model_construct(edge="E1", subject="rows", checks=list(specs))
    rows = [{"id": f"r{x}", "x": x} for x in range(10)] if rows is None else rows
    return run_suite(suite, Measured(rows, summary or {}, culprits or {}), offenders)


def test_offenders_are_ids_in_order_and_limited():
    (check,) = run(spec(), offenders=3)
    assert (check.passed, check.observed) == (False, 0.4)
    assert check.offenders == ["r6", "r7", "r8"]


def test_no_offenders_are_kept_when_none_are_wanted():
    (check,) = run(spec(), offenders=0)
    assert check.offenders == [] and not check.passed


def test_mostly_allows_a_share_of_rows():
    assert run(spec(mostly=0.6))[0].passed
    assert not run(spec(mostly=0.61))[0].passed


def test_a_class_name_works_like_the_snake_case_name():
    assert not run(spec(expectation="ExpectColumnValuesToBeBetween"))[0].passed


def test_quantiles_and_pairs_are_observed_as_one_value():
    quantile = spec(
        "p50",
        expectation="expect_column_quantile_values_to_be_between",
        arguments={"quantile_ranges": {"quantiles": [0.5], "value_ranges": [[0, 9]]}},
    )
    pair = spec(
        "pair",
        column=None,
        expectation="expect_column_pair_values_to_be_equal",
        arguments={"column_A": "x", "column_B": "y"},
    )
    rows = [{"id": str(x), "x": x, "y": min(x, 6)} for x in range(9)]
    found = run(quantile, pair, rows=rows)
    assert found[0].observed == 4 and found[0].passed is True
    assert found[1].observed == pytest.approx(2 / 9) and found[1].offenders == ["7", "8"]


def test_summary_checks_tell_the_value_and_the_culprits():
    (check,) = run(
        spec(level="summary", column="share"),
        summary={"share": 7.5},
        culprits={"share": ["a", "b"]},
        offenders=1,
    )
    assert (check.passed, check.observed, check.threshold) == (False, 7.5, "<= 5")
    assert check.offenders == ["a"]


def test_an_infinite_value_fails_and_can_be_written():
    (check,) = run(spec(level="summary"), summary={"x": math.inf})
    assert (check.passed, check.observed) == (False, "inf")
    assert "inf" in check.model_dump_json()


def test_null_is_exempt_only_where_the_suite_says_so():
    rows = [{"id": "a", "x": None}, {"id": "b", "x": 9}]
    assert run(spec(nullable=True), rows=rows)[0].observed == 1.0
    with pytest.raises(GateCouldNotRun, match="E1/small: 'x' could not be measured for row 'a'"):
        run(spec(), rows=rows)


def test_a_rule_that_applies_to_no_row_says_so():
    (check,) = run(spec(nullable=True), rows=[{"id": "a", "x": None}])
    assert check.observed == "not applicable"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "no row was measured"),
        ([{"id": "a"}], "metric 'x' was not measured for row 'a'"),
        ([{"id": "a", "x": math.nan}], "'x' is NaN for row 'a'"),
        ([{"id": "a", "x": "seven"}], "raised"),
    ],
)
def test_what_cannot_be_measured_is_never_a_pass(rows, told):
    with pytest.raises(GateCouldNotRun, match=told):
        run(spec(nullable=True), rows=rows)


@pytest.mark.parametrize(
    "changes",
    [
        {"expectation": "expect_column_values_to_be_lovely"},
        {"arguments": {"maximum": 5}},
        {"arguments": {"min_value": 6, "max_value": 5}},
    ],
)
def test_a_check_that_cannot_run_is_never_a_pass(changes):
    with pytest.raises(GateCouldNotRun):
        run(spec(**changes))


def test_an_exception_inside_great_expectations_is_never_a_pass(monkeypatch):
    import great_expectations

    def broken(**arguments):
        raise great_expectations.exceptions.DataContextError("no context")

    monkeypatch.setattr(great_expectations, "get_context", broken)
    with pytest.raises(GateCouldNotRun, match="DataContextError: no context"):
        run(spec())


def test_nothing_is_written_into_home_or_the_working_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run(spec())
    assert list(Path(tmp_path).rglob("*")) == []
    assert os.environ["GX_ANALYTICS_ENABLED"] == "false"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"level": "summary"}, "<= 5"),
        ({"level": "summary", "arguments": {"min_value": 1}}, ">= 1"),
        ({"level": "summary", "arguments": {"min_value": 1, "max_value": 1}}, "= 1"),
        ({"level": "summary", "arguments": {"min_value": -1, "max_value": 1}}, "in [-1, 1]"),
        ({}, "0 rows break `x <= 5`"),
        ({"mostly": 0.95}, "<= 0.05 of rows break `x <= 5`"),
        (
            {"expectation": "expect_column_values_to_be_in_set",
             "arguments": {"value_set": [False]}},
            "0 rows break `x = false`",
        ),
        ({"expectation": "expect_column_values_to_be_unique", "arguments": {}},
         "0 rows break `x unique`"),
    ],
)  # fmt: skip
def test_the_rule_is_told_as_text(changes, text):
    assert rule_text(spec(**changes)) == text
