"""E8: faults of an evaluation and of a comparison."""

import pytest
from quality_parts import judge, make_recipe, make_result, make_samples, write_eval
from scipy import stats

from longstride.quality import measure_evals
from longstride.quality.gate import _open
from longstride.quality.subject import Subject
from longstride.quality.suites import load_suite, resolve

RECIPE = make_recipe()


def measure(tmp_path, samples, result, before=0.4):
    old = make_samples(before)
    write_eval(tmp_path / "before", old, make_result(old, "before"))
    write_eval(tmp_path / "after", samples, result)
    artifacts = [_open(tmp_path / name, "eval") for name in ("after", "before")]
    return measure_evals.measure(Subject("benchmark", RECIPE, *artifacts))


def failed(measured):
    outcome = judge(resolve(load_suite("E8"), RECIPE), measured)
    return {name for name, passed in outcome.items() if not passed}


def case(samples=None, edit=None, **result):
    rows = make_samples(0.6) if samples is None else samples
    stated = make_result(make_samples(0.6) if edit else rows, "after", **result)
    if edit:
        edit(rows)
    return rows, stated


def lost(rows):
    del rows[0]


CASES = {
    "samples_complete": case(edit=lambda rows: rows.append(
        rows[0].model_copy(update={"sample": 2, "correct": rows[1].correct}))),
    "within_window": case(edit=lambda rows: setattr(rows[0], "length", 99)),
    "finished_when_correct": case(edit=lambda rows: setattr(rows[0], "finish_reason", "length")),
    "average_recomputed": case(average={"mean": 0.9, "low": 0.8, "high": 1.0, "problems": 20,
                                        "samples": 40}),
    "interval_present": case(average={"mean": 0.6, "low": 0.7, "high": 0.8, "problems": 20,
                                      "samples": 40}),
    "comparable": case(temperature=0.5),
    "checkpoints_differ": case(checkpoint_digest="sha256:before"),
    "no_regression": case(make_samples(0.1)),
    "truncation": case(edit=lambda rows: [setattr(row, "finish_reason", "length")
                                          for row in rows if not row.correct]),
}  # fmt: skip
ALONG = {"no_regression": {"no_worse_for_certain"}}


@pytest.mark.parametrize("name", CASES)
def test_a_fault_of_an_evaluation_fails_its_check_and_no_other(tmp_path, name):
    found = failed(measure(tmp_path, *CASES[name]))
    assert name in found
    assert found <= {name} | ALONG.get(name, set())


def test_a_missing_problem_is_named_on_both_sides(tmp_path):
    rows = make_samples(0.6)
    gone = rows[0].prompt_id
    rows = [row for row in rows if row.prompt_id != gone]
    measured = measure(tmp_path, rows, make_result(rows, "after"))
    assert failed(measured) == {"problems_paired"}
    assert measured.culprits["unpaired_problems"] == [gone]


def test_a_sample_that_was_not_scored_blocks(tmp_path):
    rows, result = case(edit=lambda rows: setattr(rows[0], "correct", None))
    assert "samples_scored" in failed(measure(tmp_path, rows, result))


def test_a_sample_twice_is_seen(tmp_path):
    rows = make_samples(0.6)
    rows[1] = rows[0]
    assert "ids_unique" in failed(measure(tmp_path, rows, make_result(rows, "after")))


def test_a_sample_of_a_strange_problem_is_seen(tmp_path):
    rows, result = case(edit=lambda rows: setattr(rows[0], "prompt_id", "stranger"))
    assert {"problems_known", "problems_recomputed"} <= failed(measure(tmp_path, rows, result))


def test_no_change_is_no_regression_but_hides_none_either(tmp_path):
    rows = make_samples(0.4)
    rows[0] = rows[0].model_copy(update={"correct": not rows[0].correct})
    assert failed(measure(tmp_path, rows, make_result(rows, "after"))) == {"no_worse_for_certain"}


def test_the_paired_interval_is_scipys(tmp_path):
    rows = make_samples(0.6)
    result = make_result(rows, "after")
    measured = measure(tmp_path, rows, result)
    before = make_result(make_samples(0.4), "before").problem_means
    changes = [result.problem_means[p] - before[p] for p in sorted(before)]
    low, high = stats.ttest_1samp(changes, 0.0).confidence_interval(0.95)
    assert measured.summary["difference_low"] == pytest.approx(low)
    assert measured.summary["difference_high"] == pytest.approx(high)
