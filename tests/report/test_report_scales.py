from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstride.report import figures
from longstride.report.charts import Chart, Segment, Series, draw
from longstride.report.scales import Scale, domain, linear_ticks, thin, wants_log

REAL = st.floats(-1e12, 1e12)


@given(st.lists(REAL, min_size=1, max_size=3000), st.integers(10, 600))
def test_thinning_keeps_the_extremes_and_both_ends(values, limit):
    points = [(float(i), v) for i, v in enumerate(values)]
    kept = thin(points, limit)
    assert len(kept) <= limit or len(points) <= limit
    assert (kept[0], kept[-1]) == (points[0], points[-1])
    shown = [v for _, v in kept]
    assert (min(shown), max(shown)) == (min(values), max(values))
    assert kept == sorted(kept)


def test_a_single_spike_among_100_000_points_survives():
    points = [(float(i), 1.0) for i in range(100_000)]
    points[54_321] = (54_321.0, 9.0)
    assert (54_321.0, 9.0) in thin(points, 500)


@given(REAL, REAL)
def test_ticks_are_few_ascending_and_inside(a, b):
    low, high = min(a, b), max(a, b)
    ticks = linear_ticks(low, high)
    tolerance = 1e-6 * max(abs(low), abs(high), 1e-300)
    assert 1 <= len(ticks) <= 12
    assert ticks == sorted(ticks)
    assert all(low - tolerance <= t <= high + tolerance for t in ticks)


def test_ticks_are_round_numbers():
    assert linear_ticks(0, 1) == [0, 0.2, 0.4, 0.6, 0.8, 1]
    assert linear_ticks(37, 81) == [40, 50, 60, 70, 80]
    assert Scale(0.02, 300, 0, 1, log=True).ticks() == [0.1, 1, 10, 100]


@given(st.lists(REAL, min_size=1), st.booleans())
def test_a_domain_holds_its_data_and_is_never_empty(values, zero):
    low, high = domain(values, log=False, zero=zero)
    assert low <= min(values) <= max(values) <= high
    assert low < high


def test_a_logarithm_is_used_only_where_it_helps():
    assert wants_log([0.01, 1.0])
    assert not wants_log([0.5, 1.0])
    assert not wants_log([-1.0, 100.0])


def test_a_log_scale_puts_equal_ratios_at_equal_distances():
    scale = Scale(1, 100, 0, 200, log=True)
    assert [scale(v) for v in (1, 10, 100)] == pytest.approx([0, 100, 200])


def test_numbers_read_as_people_write_them():
    shown = [figures.number(v) for v in (0, 1234567, 0.70314159, -3.5, 2e-7, 1e-15, 12.0, None)]
    assert shown == ["0", "1,234,567", "0.7031", "\u22123.5", "2e-7", "1e-15", "12", "\u2013"]
    assert figures.number(math.inf) == "∞"


def test_durations_have_two_units():
    seconds = (0.004, 1.25, 59.4, 61, 3600, 90_061, 400_000)
    assert [figures.duration(s) for s in seconds] == [
        "4 ms", "1.2 s", "59 s", "1 min 01 s", "1 h 00 min", "25 h 01 min", "4 d 15 h",
    ]  # fmt: skip


def test_a_chart_draws_no_more_than_500_points_of_a_long_series():
    series = Series("loss", [(float(i), math.sin(i)) for i in range(20_000)])
    svg = draw(Chart("Loss", "nats", [series], [Segment("a", 0, 20_000)]))
    path = svg.split(' d="')[1].split('"')[0]
    assert path.count("L") < 500


def test_a_series_without_finite_values_is_left_out():
    assert draw(Chart("Loss", "nats", [Series("loss", [(0.0, math.nan)])])) == ""


@pytest.mark.parametrize("values", [[5e-324, 1.0], [1.0, 1.7e308], [1e-300, 1e300]])
def test_values_too_extreme_for_a_logarithm_are_drawn_on_a_line(values):
    assert not wants_log(values)
    low, high = domain([1e-99, 1e99], log=True)
    assert 0 < low < high < float("inf")
