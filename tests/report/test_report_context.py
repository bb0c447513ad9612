import pytest
from example_run import example_run
from page_parts import read_page

from longstride.report import figures, render_report
from schemas.run import MetricPoint, RunRecord, TaskMetrics


@pytest.fixture(scope="module")
def page():
    return read_page(render_report(example_run()))


def texts(page):
    tables = page.by_id("context").all("table", "context")
    return [[[c.text for c in row.all("td")] for row in table.all("tr")[1:]] for table in tables]


def test_every_stage_shows_its_perplexity_by_position_before_and_after(page):
    run = example_run()
    stage = next(task for task in run.metrics if task.stage == "extend-2")
    points = {(p.name, p.step): p.value for p in stage.points}
    positions = texts(page)[3]
    for row, (first, end) in zip(positions, ((0, 16), (16, 32), (32, 64)), strict=True):
        name = f"validation/perplexity/positions_{first}_{end}"
        before, after = points[name, 0], points[name, 60]
        assert row == [
            f"{first} to {end - 1}", figures.number(before, 3), figures.number(after, 3),
            figures.percent(after / before - 1),
        ]  # fmt: skip


def test_passkey_cells_stand_by_length_and_depth(page):
    accuracy, margin = texts(page)[1:3]
    assert [row[0] for row in accuracy] == ["32 tokens", "64 tokens"]
    assert accuracy[0][1:] == ["10.0\u2009% → 70.0\u2009%"] * 3
    assert margin[1][1:] == ["0 → 2"] * 3


def test_spikes_and_back_offs_of_each_stage_are_said(page):
    said = page.by_id("context").text
    assert said.count("3 steps left out as spikes") == 4
    assert said.count("1 back-off") == 4


def test_what_is_in_the_tables_is_not_drawn_as_curves(page):
    curves = page.by_id("curves").text
    assert "passkey" not in curves and "positions" not in curves
    assert "Spike watch" in curves


def test_a_stage_that_is_still_running_shows_what_it_measured_first():
    points = [MetricPoint(step=0, name="validation/perplexity/positions_0_16", value=7.5)]
    run = RunRecord(
        run_id="r", name="n", state="RUNNING",
        metrics=[TaskMetrics(task="root/t", stage="extend-1", points=points)],
    )  # fmt: skip
    (table,) = texts(read_page(render_report(run)))
    assert table == [["0 to 15", "7.5", figures.MISSING, figures.MISSING]]


def test_without_extension_stages_it_says_so():
    run = RunRecord(run_id="r", name="n", state="RUNNING")
    assert "No context-extension stage" in read_page(render_report(run)).by_id("context").text
