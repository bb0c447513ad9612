"""The profile gives the verdict that Great Expectations gives on all rows, at any size."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from quality_parts import write_rows

from longstride.errors import GateCouldNotRun
from longstride.quality.frame import Measured, RowWriter, Seen
from longstride.quality.run_suite import _validate, run_suite
from longstride.quality.suites import CheckSpec, Suite

COLUMNS = {"id": "text", "x": "number", "n": "count", "ok": "flag"}


def spec(name, **changes):
    values = {
        "name": name, "description": "a rule about rows", "level": "rows", "column": "x",
        "expectation": "expect_column_values_to_be_between", "arguments": {}, "nullable": True,
        "applies": "rows that have a value", "severity": "block", "origin": "here",
    }  # fmt: skip
    return CheckSpec.model_construct(**{**CheckSpec.model_validate(values).model_dump(), **changes})


FALSE = {"expectation": "expect_column_values_to_be_in_set", "arguments": {"value_set": [False]}}
SPECS = [
    spec("low", arguments={"min_value": 0.0}),
    spec("high", arguments={"max_value": 2.0}, mostly=0.75),
    spec("inside", arguments={"min_value": -1.0, "max_value": 1.0}, mostly=0.5),
    spec("strict", column="n", arguments={"min_value": 0, "strict_min": True}, mostly=2 / 3),
    spec("flag", column="ok", mostly=0.9, **FALSE),
    spec("unique", column="id", expectation="expect_column_values_to_be_unique"),
]
ROW = st.fixed_dictionaries({
    "id": st.sampled_from("abcdefgh"),
    "x": st.none() | st.sampled_from([-1.0, 0.0, 0.5, 1.0, 2.0, 2.5]),
    "n": st.none() | st.integers(-1, 2),
    "ok": st.none() | st.booleans(),
})  # fmt: skip


@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(rows=st.lists(ROW, min_size=1, max_size=12))
def test_a_profile_is_judged_as_great_expectations_judges_all_rows(rows, tmp_path):
    suite = Suite.model_construct(edge="E1", subject="rows", checks=SPECS)
    measured = Measured(write_rows(tmp_path / "m.parquet", rows, COLUMNS), {})
    found = {check.name: check for check in run_suite(suite, measured, 20)}
    for each, plain in zip(SPECS, _validate("E1", SPECS, rows, 20), strict=True):
        check = found[each.name]
        assert check.passed is plain["success"], each.name
        applies = plain["element_count"] - plain.get("missing_count", 0)
        expected = plain["unexpected_count"] / applies if applies else "not applicable"
        assert check.observed == expected
        ids = [row["id"] for row in plain.get("partial_unexpected_index_list") or []]
        if not check.passed:
            assert set(check.offenders) == set(ids)


def test_one_bad_row_at_the_end_of_many_is_found_by_name(tmp_path):
    with RowWriter(tmp_path / "m.parquet", COLUMNS) as writer:
        for number in range(200_000):
            writer.append({"id": f"r{number}", "x": 1.0, "n": 1, "ok": number == 199_999})
        rows = writer.finish()
    suite = Suite.model_construct(edge="E1", subject="rows", checks=[spec("flag", column="ok",
                                                                         **FALSE)])  # fmt: skip
    (check,) = run_suite(suite, Measured(rows, {}), 5)
    assert (check.passed, check.offenders) == (False, ["r199999"])


ROLLOUTS = """
import resource, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from quality_parts import make_recipe, make_rollouts, measure
from longstride.store.artifacts import publish
from longstride.store.files import write_json
out = Path(sys.argv[1])
out.mkdir()
rows = make_rollouts()
with (out / "rollouts.jsonl").open("w") as stream:
    for batch in range(int(sys.argv[3]) // 24):
        for row in rows:
            number = 2 * batch + row.batch
            stream.write(row.model_copy(update={"batch": number}).model_dump_json() + "\\n")
write_json(out / "summary.json", {"passed_through": False, "is_weight_cap": 5.0})
publish(out, "rollouts", "rl-1")
found = measure("E5", "rl-1", make_recipe(), out)
assert found.summary["broken_groups"] == 0 and not found.summary["uncentred_groups"]
print(found.rows.count, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


def test_many_rollouts_are_measured_in_little_memory(tmp_path):
    peaks = {}
    for rows in (2_400, 96_000):
        done = subprocess.run(
            [sys.executable, "-c", ROLLOUTS, tmp_path / str(rows), "tests/quality", str(rows)],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        count, peaks[rows] = map(int, done.stdout.split())
        assert count == rows
    # A rollout of this kind is 4 kB in the file, so that all of them would take 400 MiB.
    assert peaks[96_000] < peaks[2_400] + 150


def test_a_row_that_was_measured_in_part_could_not_run(tmp_path):
    with (
        pytest.raises(GateCouldNotRun, match=r"\['ok'\] differ"),
        RowWriter(tmp_path / "m.parquet", COLUMNS) as writer,
    ):
        writer.append({"id": "a", "x": 1.0, "n": 1})
    assert list(tmp_path.iterdir()) == []


def test_a_deadline_stops_the_measuring(tmp_path):
    with (
        pytest.raises(GateCouldNotRun, match="deadline"),
        RowWriter(tmp_path / "m.parquet", COLUMNS, deadline=0.0) as writer,
    ):
        writer.append({"id": "a", "x": 1.0, "n": 1, "ok": True})


def test_what_was_seen_is_known_by_its_digest():
    seen = Seen()
    assert [seen.again(key) for key in (b"12345678", b"abcdefgh", b"12345678tail")] == [
        False, False, True,
    ]  # fmt: skip
