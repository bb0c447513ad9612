"""E8: the comparison is the one of a textbook."""

import pytest
from quality_parts import make_result, make_samples, measure, write_eval
from scipy import stats


def test_the_paired_interval_is_scipys(parts, tmp_path):
    after, before = (
        make_result(make_samples(0.6), "after"),
        make_result(make_samples(0.4), "before"),
    )
    write_eval(tmp_path / "after", make_samples(0.6), after)
    write_eval(tmp_path / "before", make_samples(0.4), before)
    found = measure("E8", "benchmark", parts.recipe, tmp_path / "after", tmp_path / "before")
    changes = [
        after.problem_means[p] - before.problem_means[p] for p in sorted(before.problem_means)
    ]
    low, high = stats.ttest_1samp(changes, 0.0).confidence_interval(0.95)
    assert found.summary["difference_low"] == pytest.approx(low)
    assert found.summary["difference_high"] == pytest.approx(high)


def test_a_missing_problem_is_named(parts, tmp_path):
    rows = [row for row in make_samples(0.6) if row.prompt_id != "chain_sum-3"]
    write_eval(tmp_path / "after", rows, make_result(rows, "after"))
    found = measure("E8", "benchmark", parts.recipe, tmp_path / "after", parts["before"])
    assert found.culprits["unpaired_problems"] == ["chain_sum-3"]
