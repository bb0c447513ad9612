from __future__ import annotations

import base64
import hashlib
import re

import pytest
from example_run import blocked_run, cut_at, example_run
from page_parts import read_page

from longstride.report import render_report
from longstride.report.record import CollectedRun
from schemas.run import MetricPoint, RunRecord

EVIL = "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>&lt;"


@pytest.fixture(scope="module")
def page():
    return read_page(render_report(example_run()))


def _poisoned() -> CollectedRun:
    run = example_run()
    run.name, run.run_id, run.error = EVIL, EVIL, EVIL
    for task in run.tasks:
        task.display_name, task.error = task.display_name + EVIL, EVIL
        task.artifacts = {EVIL: EVIL}
    verdict = run.verdicts[0]
    verdict.passed, verdict.stage, verdict.note, verdict.suite_digest = False, EVIL, EVIL, EVIL
    check = verdict.checks[0]
    check.passed, check.name, check.description, check.observed = False, EVIL, EVIL, EVIL
    check.threshold, check.origin, check.offenders = EVIL, EVIL, [EVIL] * 4
    run.metrics[0].stage = EVIL
    run.metrics[0].points += [MetricPoint(step=1, name=f"train/{EVIL}", value=1.0)]
    run.metrics[1].points += [MetricPoint(step=1, name=EVIL, value=1.0)]
    run.ladder.history[0].reasons = [EVIL]
    run.rollouts = {EVIL: run.rollouts["round-1"]}
    run.rollouts[EVIL][0].prompt_id, run.rollouts[EVIL][0].rewards = EVIL, {EVIL: 1.0}
    run.tokens = dict.fromkeys(run.tokens, EVIL)
    result = run.evaluations[0].result
    result.label, result.by_family = EVIL, {EVIL: result.average}
    run.evaluations[0].samples[0].text = EVIL
    run.recipe = {EVIL: {EVIL: EVIL}, "name": EVIL}
    run.versions, run.machine, run.notes = {EVIL: EVIL}, {EVIL: EVIL}, [EVIL]
    run.cache_reasons = {run.tasks[1].path: EVIL}
    return run


def test_markup_in_any_foreign_text_stays_text():
    poisoned = read_page(render_report(_poisoned()))
    assert len(poisoned.all("script")) == 1
    assert not poisoned.all("img")
    assert poisoned.text.count(EVIL) > 60


def test_no_element_has_an_inline_handler_or_style():
    poisoned = read_page(render_report(_poisoned()))
    names = {name for e in poisoned.all() for name in e.attributes}
    assert not {name for name in names if name.startswith("on") or name in ("style", "src")}


def test_no_request_leaves_the_page():
    run = example_run()
    run.recipe["data"] = {"uri": "https://example.org/corpus"}
    html = render_report(run)
    page = read_page(html)
    attributes = [v or "" for e in page.all() for v in e.attributes.values()]
    assert not [v for v in attributes if re.search(r"https?:", v)]
    assert "https://example.org/corpus" in page.text
    code = page.all("style")[0].text + page.all("script")[0].text
    assert not re.search(r"url\(|@import|https?:|fetch|XMLHttp|import\(", code)


def test_the_content_security_policy_admits_only_the_page_s_own_script(page):
    digest = hashlib.sha256(page.all("script")[0].text.encode()).digest()
    policy = next(e.attributes["content"] for e in page.all("meta") if "http-equiv" in e.attributes)
    assert "default-src 'none'" in policy
    assert f"script-src 'sha256-{base64.b64encode(digest).decode()}'" in policy


def test_every_check_shows_what_was_observed_and_allowed(page):
    for index, verdict in enumerate(example_run().verdicts, start=1):
        rows = page.by_id(f"verdict-{index}").all("tr", "check")
        shown = {
            row.all("span", "check-name")[0].text: (
                row.all("td", "observed")[0].values,
                row.all("td", "threshold")[0].text,
            )
            for row in rows
        }
        for check in verdict.checks:
            exact = str(check.observed).lower() if check.observed is True else check.observed
            exact = exact if isinstance(exact, str) else repr(exact)
            assert shown[check.name] == ([exact], check.threshold)


def test_every_interval_of_the_benchmark_is_in_its_table(page):
    values = set(page.by_id("benchmark").all("table", "benchmark")[0].values)
    for evaluation in example_run().evaluations:
        result = evaluation.result
        for interval in (result.average, *result.by_family.values(), *result.by_level.values()):
            assert {repr(interval.mean), repr(interval.low), repr(interval.high)} <= values


def test_the_headline_is_the_paired_gain_computed_from_problem_means(page):
    before, after = (e.result.problem_means for e in example_run().evaluations)
    gain = sum(after[p] - before[p] for p in before) / len(before)
    headline = page.all("a", "headline")[0]
    assert float(headline.all("p", "headline-number")[2].values[0]) == pytest.approx(gain)
    assert "above zero with 95% confidence" in headline.text


def test_results_on_different_problems_are_said_not_to_be_comparable():
    run = example_run()
    run.evaluations[1].result.prompt_set_digest = "sha256:other"
    page = read_page(render_report(run))
    assert "not comparable" in page.all("a", "headline")[0].text
    assert "sha256:other" in page.by_id("benchmark").all("p", "callout")[0].text


def test_failed_gates_are_open_and_passed_gates_are_folded():
    run = blocked_run()
    gates = read_page(render_report(run)).by_id("gates").all("details", "gate")
    assert ["open" in gate.attributes for gate in gates] == [not v.passed for v in run.verdicts]


def test_a_blocked_run_names_the_gate_the_check_and_the_task_at_the_top():
    problems = read_page(render_report(blocked_run())).all("div", "problems")[0]
    assert "E3 sft" in problems.text
    assert "think_tags: observed 0.9123, allowed >= 0.995" in problems.text
    assert "root/sft/gate-e3" in problems.text


def test_a_failed_task_shows_its_whole_error():
    error = "DataError: line 7 is broken\n" + "detail " * 80
    page = read_page(render_report(cut_at("root/extend-3/pack", "FAILED", error)))
    assert error in page.all("div", "problems")[0].text


@pytest.mark.parametrize("state", ["RUNNING", "CANCELED", "FAILED"])
def test_a_run_that_stopped_anywhere_renders(state):
    for path in ("root/prerequisites", "root/data/pack", "root/round-3/cispo", "root/report"):
        assert read_page(render_report(cut_at(path, state, None))).text


def test_an_empty_record_says_that_nothing_is_there_yet():
    page = read_page(render_report(RunRecord(run_id="r", name="n", state="PENDING")))
    assert len(page.all("p", "empty")) >= 7


def test_notes_of_the_collector_are_visible():
    run = example_run()
    run.notes = ["round-1: ladder_state.json is not JSON"]
    assert run.notes[0] in read_page(render_report(run)).all("details", "notes")[0].text


def test_the_ladder_shows_every_decision_with_its_reasons(page):
    ladder = page.by_id("ladder")
    for entry in example_run().ladder.history:
        assert entry.decision in ladder.text
        assert all(reason in ladder.text for reason in entry.reasons)


def test_unknown_series_are_drawn_too(page):
    titles = [e.text for e in page.by_id("curves").all("span", "chart-title")]
    assert "rl/gradient_share" in titles


def test_every_chart_has_a_title_a_unit_ticks_and_a_legend(page):
    for figure in page.by_id("curves").all("figure"):
        assert figure.all("span", "chart-title")[0].text
        assert figure.all("span", "chart-unit")[0].text
        assert len(figure.all("text", "tick")) >= 3
        assert figure.all("div", "legend")[0].text


def test_tokens_above_the_cap_are_outlined_and_others_are_not(page):
    run = example_run()
    rows = [row for rows in run.rollouts.values() for row in rows]
    # One remedy after round 4 halves cap - 1, so the cap is 5 before and 3 after it.
    caps = [5.0 if i < 4 * 24 else 3.0 for i in range(len(rows))]
    expected = sum(w > c for row, c in zip(rows, caps, strict=True) for w in row.importance_weights)
    assert len(page.by_id("rollouts").all("b", "cap")) - 1 == expected  # one is in the legend


def test_the_reflection_words_of_the_recipe_are_marked(page):
    assert {"Wait", "However"} <= {
        e.text.strip() for e in page.by_id("rollouts").all("b", "reflect")
    }


def test_an_answer_that_could_not_be_judged_is_not_called_wrong(page):
    heads = [e.text for e in page.by_id("rollouts").all("div", "sample-head")]
    unjudged = [text for text in heads if "not judged" in text]
    assert len(unjudged) == 1
    assert "reward \u2013" in unjudged[0]


def test_the_recipe_shows_every_value_with_where_it_comes_from(page):
    rows = {
        e.all("th")[0].attributes["title"]: [td.text for td in e.all("td")]
        for e in page.by_id("recipe").all("tr")
    }
    assert rows["rl.algorithm.is_weight_cap"] == ["5.0", "chosen"]
    assert rows["ladder.rungs"] == ["[40,48,56,64,72,80]", "disclosed"]


def test_the_page_of_a_tiny_run_is_small_and_always_the_same():
    first, second = render_report(example_run()), render_report(example_run())
    assert first == second
    assert len(first.encode()) < 3_000_000
