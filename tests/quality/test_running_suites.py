"""Great Expectations fails open in several ways; running a suite closes every one of them."""

import math
import os
from pathlib import Path

import pytest
from quality_parts import write_rows

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


KINDS = {bool: "flag", int: "count", float: "number", str: "text"}


@pytest.fixture
def run(tmp_path):
    def judge_rows(*specs, rows=None, summary=None, culprits=None, offenders=20, profile=None,
                   before=None):  # fmt: skip
        suite = Suite.model_construct(edge="E1", subject="rows", checks=list(specs))
        rows = [{"id": f"r{x}", "x": x} for x in range(10)] if rows is None else rows
        columns = {"id": "text"}
        for row in rows:
            columns |= {n: KINDS[type(v)] for n, v in row.items() if v is not None}
            columns |= {n: "count" for n in row if n not in columns}
        frame = write_rows(tmp_path / "measured.parquet", rows, columns)
        return run_suite(suite, Measured(frame, summary or {}, culprits or {}), offenders, profile,
                         before)  # fmt: skip

    return judge_rows


def test_offenders_are_ids_in_order_and_limited(run):
    (check,) = run(spec(), offenders=3)
    assert (check.passed, check.observed) == (False, 0.4)
    assert check.offenders == ["r6", "r7", "r8"]


def test_no_offenders_are_kept_when_none_are_wanted(run):
    (check,) = run(spec(), offenders=0)
    assert check.offenders == [] and not check.passed


def test_mostly_allows_a_share_of_rows(run):
    assert run(spec(mostly=0.6))[0].passed
    assert not run(spec(mostly=0.61))[0].passed


def test_summary_checks_tell_the_value_and_the_culprits(run):
    (check,) = run(
        spec(level="summary", column="share"),
        summary={"share": 7.5},
        culprits={"share": ["a", "b"]},
        offenders=1,
    )
    assert (check.passed, check.observed, check.threshold) == (False, 7.5, "<= 5")
    assert check.offenders == ["a"]


def test_an_infinite_value_fails_and_can_be_written(run):
    (check,) = run(spec(level="summary"), summary={"x": math.inf})
    assert (check.passed, check.observed) == (False, "inf")
    assert "inf" in check.model_dump_json()


def test_null_is_exempt_only_where_the_suite_says_so(run):
    rows = [{"id": "a", "x": None}, {"id": "b", "x": 9}]
    assert run(spec(nullable=True), rows=rows)[0].observed == 1.0
    with pytest.raises(GateCouldNotRun, match="E1/small: 'x' could not be measured for row 'a'"):
        run(spec(), rows=rows)


def test_a_rule_that_applies_to_no_row_says_so(run):
    (check,) = run(spec(nullable=True), rows=[{"id": "a", "x": None}])
    assert check.observed == "not applicable"


@pytest.mark.parametrize(
    ("rows", "told"),
    [
        ([], "no row was measured"),
        ([{"id": "a"}], "metric 'x' was not measured"),
        ([{"id": "a", "x": math.nan}], "'x' is NaN for row 'a'"),
        ([{"id": "a", "x": "seven"}], "cannot be counted"),
    ],
)
def test_what_cannot_be_measured_is_never_a_pass(run, rows, told):
    with pytest.raises(GateCouldNotRun, match=told):
        run(spec(nullable=True), rows=rows)


@pytest.mark.parametrize(
    "changes",
    [
        {"expectation": "expect_column_values_to_be_lovely"},
        {"level": "summary", "expectation": "expect_column_values_to_be_lovely"},
        {"arguments": {"maximum": 5}},
        {"level": "summary", "arguments": {"maximum": 5}},
        {"arguments": {"min_value": 6, "max_value": 5}},
    ],
)
def test_a_check_that_cannot_run_is_never_a_pass(run, changes):
    with pytest.raises(GateCouldNotRun):
        run(spec(**changes))


def test_an_exception_inside_great_expectations_is_never_a_pass(run, monkeypatch):
    import great_expectations

    def broken(**arguments):
        raise great_expectations.exceptions.DataContextError("no context")

    monkeypatch.setattr(great_expectations, "get_context", broken)
    with pytest.raises(GateCouldNotRun, match="DataContextError: no context"):
        run(spec())


def test_nothing_is_written_into_home_or_the_working_directory(run, tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    run(spec())
    assert [p.name for p in Path(tmp_path).rglob("*")] == ["measured.parquet"]
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
