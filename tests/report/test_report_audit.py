"""The audit section: what updates did to reflection tokens, added up from the rows."""

import pytest
from example_run import cut_at, example_run
from page_parts import read_page

from longstride.report import render_report
from schemas.audit import AuditRow


def section(run):
    return read_page(render_report(run)).by_id("audit")


def row(**values):
    given = {
        "batch": 0, "off_policy_round": 1, "bucket": "other", "tokens": 96,
        "probability_old": 48.0, "probability_new": 48.0, "ratio": 96.0, "capped": 0,
        "ppo_dropped": 0, "gradient": 3.0, "ppo_dropped_gradient": 0.0,
    }  # fmt: skip
    return AuditRow(**(given | values))


RARE = {"tokens": 4, "probability_old": 0.2, "probability_new": 0.6, "ratio": 12.0, "capped": 1,
        "ppo_dropped": 3, "gradient": 1.0, "ppo_dropped_gradient": 0.5}  # fmt: skip


@pytest.fixture(scope="module")
def small():
    run = example_run()
    run.audit = {"rl-1": [row(bucket="wait", **RARE), row(bucket="reflection", **RARE), row()]}
    return section(run)


def test_a_bucket_has_its_share_of_tokens_and_of_the_gradient(small):
    cells = {line.all("td")[0].text: [c.text for c in line.all("td")]
             for line in small.all("tr") if line.all("td")}  # fmt: skip
    thin = "\u2009%"
    assert cells["wait"] == ["wait", "4", f"4.0{thin}", "0.05", "0.1", "3", f"25.0{thin}",
                             f"75.0{thin}", f"25.0{thin}", f"50.0{thin}"]  # fmt: skip
    assert cells["other"][1:3] == ["96", f"96.0{thin}"]
    assert list(cells) == ["wait", "reflection", "other"]


def test_the_clip_that_is_compared_with_is_named(small):
    heads = [cell.text for cell in small.all("th")]
    run = example_run()
    run.recipe["rl"]["audit"] = {"clip_low": 0.2, "clip_high": 0.28}
    heads = [cell.text for cell in section(run).all("th")]
    assert "clip 0.8 to 1.28 drops" in heads


def test_there_is_a_chart_for_each_question():
    titles = [e.text for e in section(example_run()).all("span", "chart-title")]
    assert titles == [
        "Ratio to the old policy", "A PPO clip would drop", "Tokens at the cap",
        "Share of the gradient", "Probability of reflection", "How often it reflects",
    ]  # fmt: skip


def test_audit_metrics_are_not_drawn_a_second_time_among_the_curves():
    run = example_run()
    before = render_report(run)
    point = run.metrics[-1].points[-1].model_copy(update={"name": "rl/audit/wait/ratio"})
    run.metrics[-1].points.append(point)
    assert render_report(run) == before


def test_before_the_first_update_it_says_that_there_is_nothing():
    run = cut_at(example_run().tasks[3].path, "RUNNING", None)
    assert "No update was taken yet." in section(run).text
