"""Agreement with people and the best-of-n gap, beside closed forms and brute force."""

import itertools
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from scripted_judge import (
    PROBLEM,
    REFERENCE,
    honest,
    inconsistent,
    judging,
    listing,
    refuses,
    served,
    truth,
)

from longstride.errors import DataError
from longstride.rewards.generative.agreement import (
    accuracy,
    best_of_n,
    kappa,
    measured,
    quadratic_kappa,
)
from longstride.rewards.generative.calibration import (
    CalibrationReport,
    calibrate,
    markdown,
    write_report,
)
from longstride.rewards.generative.probes import wilson_interval
from schemas.judging import LabelledAnswer

GROUPS = st.lists(st.tuples(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.booleans()), min_size=1,
                  max_size=7)  # fmt: skip


def labelled(number, count, *, problem="p", verifier="consistency", label=None, padding=""):
    answer = listing(count, padding)
    grade = 1 + round(4 * truth(answer))
    return LabelledAnswer(
        id=str(number), prompt_id=problem, prompt=PROBLEM, reference=REFERENCE, answer=answer,
        verifier=verifier, label=grade if label is None else label, correct=count == 11,
    )  # fmt: skip


def test_kappa_equals_the_textbook_example():
    # Cohen's kappa of 50 proposals, 20 and 15 of them agreed on: (0.7 - 0.5) / 0.5.
    table = np.array([[20.0, 5.0], [10.0, 15.0]])
    assert accuracy(table) == pytest.approx(0.7)
    assert kappa(table) == pytest.approx(0.4)
    assert quadratic_kappa(table) == pytest.approx(0.4)  # with two labels the weights are alike


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=2, max_size=40))
def test_quadratic_kappa_equals_its_form_by_moments(pairs):
    # 1 - E(x - y)^2 / (var x + var y + (mean x - mean y)^2)
    x, y = np.array(pairs, dtype=float).T
    table = np.zeros((5, 5))
    for a, b in pairs:
        table[a - 1, b - 1] += 1
    expected = x.var() + y.var() + (x.mean() - y.mean()) ** 2
    found = quadratic_kappa(table)
    if expected == 0:
        assert found is None
    else:
        assert found == pytest.approx(1 - np.mean((x - y) ** 2) / expected)


def test_intervals_are_over_problems_not_answers():
    rng = np.random.default_rng(0)
    # In each problem all ten answers are judged alike: ten problems, not a hundred answers.
    problems = np.repeat(np.arange(10), 10)
    people = np.repeat(rng.integers(0, 2, 10), 10)
    judge = np.where(np.repeat(np.arange(10) < 7, 10), people, 1 - people)
    clustered = measured(accuracy, people, judge, problems, (0, 1))
    lone = measured(accuracy, people, judge, range(100), (0, 1))
    assert clustered.estimate == lone.estimate == pytest.approx(0.7)
    assert clustered.high - clustered.low > 2.5 * (lone.high - lone.low)


@given(GROUPS, st.integers(1, 5))
def test_best_of_n_equals_brute_force(group, n):
    found = best_of_n([group], n)
    if len(group) < n:
        assert found is None
        return
    picks = list(itertools.combinations(group, n))
    selected = [
        np.mean([right for value, right in pick if value == max(v for v, _ in pick)])
        for pick in picks
    ]
    assert found.selected == pytest.approx(np.mean(selected))
    assert found.any_right == pytest.approx(np.mean([any(r for _, r in pick) for pick in picks]))
    assert found.gap >= -1e-12


@pytest.mark.parametrize(("hits", "trials", "low", "high"), [
    (0, 10, 0.0, 0.27753), (5, 10, 0.23659, 0.76341), (10, 10, 0.72247, 1.0), (0, 0, 0.0, 1.0),
])  # fmt: skip
def test_wilsons_interval_has_its_published_values(hits, trials, low, high):
    assert wilson_interval(hits, trials) == pytest.approx((low, high), abs=1e-5)


def test_an_honest_judge_agrees_with_people_and_leaves_no_gap(tmp_path):
    rows = [
        labelled(f"{p}-{n}", n, problem=f"p{p}", padding="so " * p)
        for p in range(3) for n in (2, 5, 8, 11)
    ]  # fmt: skip
    with served(honest) as server, judging(server, tmp_path) as judge:
        report = calibrate(judge, rows)
    (found,) = report.agreements
    assert (found.answers, found.judged, found.problems) == (12, 12, 3)
    assert found.accuracy.estimate == found.kappa.estimate == found.quadratic_kappa.estimate == 1.0
    assert [(b.n, b.gap) for b in found.best_of_n] == [(1, 0.0), (2, 0.0), (4, 0.0)]
    assert found.best_of_n[-1].selected == 1.0


def test_a_judge_that_guesses_does_not(tmp_path):
    rows = [
        labelled(f"{p}-{n}", n, problem=f"p{p}", padding="so " * p)
        for p in range(5) for n in (1, 3, 6, 9, 11)
    ]  # fmt: skip
    with served(inconsistent) as server, judging(server, tmp_path) as judge:
        # The persona goes by the seed, so every answer gets the grade of its first question.
        report = calibrate(judge, rows)
    (found,) = report.agreements
    assert found.accuracy.estimate < 0.5
    assert found.kappa.estimate == pytest.approx(0.0, abs=1e-9)
    assert found.best_of_n[2].gap > 0.3


def test_the_report_is_written_for_machines_and_people(tmp_path):
    rows = [labelled(n, n) for n in (2, 11)]
    rows.append(labelled("w", 3, verifier="pairwise", label=-1))
    with served(honest) as server, judging(server, tmp_path / "judge") as judge:
        report = calibrate(judge, rows)
        path = write_report(report, tmp_path / "out")
    assert [a.verifier for a in report.agreements] == ["consistency", "pairwise"]
    again = CalibrationReport.model_validate(
        json.loads((tmp_path / "out/calibration.json").read_text())
    )
    assert again == report
    text = path.read_text()
    assert text == markdown(report)
    assert "| accuracy | 1.000 | 1.000 to 1.000 |" in text
    assert "## pairwise (template version 1)" in text
    assert "| kappa | not defined | |" in text  # one label only


def test_answers_that_could_not_be_judged_are_counted_by_reason(tmp_path):
    with served(refuses) as server, judging(server, tmp_path) as judge:
        (found,) = calibrate(judge, [labelled(1, 3)]).agreements
    assert (found.judged, found.not_judged, found.accuracy) == (0, {"malformed": 1}, None)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no labelled answers"),
        ([labelled(1, 3), labelled(1, 4)], "'1' occurs twice"),
        ([labelled(1, 3), labelled(2, 3).model_copy(update={"prompt": "x"})], "another text"),
    ],
)
def test_a_labelled_set_that_cannot_be_used_is_refused(tmp_path, rows, message):
    with (
        served(honest) as server,
        judging(server, tmp_path) as judge,
        pytest.raises(DataError, match=message),
    ):
        calibrate(judge, rows)


def test_a_label_off_its_scale_is_refused():
    with pytest.raises(ValidationError, match=r"label=0 of a consistency answer is not in"):
        labelled(1, 3, label=0)
