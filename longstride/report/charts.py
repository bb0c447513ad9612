"""Line charts as inline SVG: axes with ticks and units, a legend, stage bands, values on hover."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from longstride.report import figures
from longstride.report.markup import Safe, join, json_attribute, tag
from longstride.report.scales import Point, Scale, domain, thin, wants_log

WIDTH, HEIGHT = 356, 214
LEFT, RIGHT, TOP, BOTTOM = 46, 10, 26, 34
SPARSE = 40
"""Up to this many points each gets a dot, so that one sees where values were measured."""


_HUGE = 1e150
"""Nothing measured is this large, and the arithmetic of axes overflows beyond it."""


@dataclass(frozen=True)
class Series:
    """One line. Points ascend in x; `color` is a slot of the palette, 1 to 8."""

    name: str
    points: list[Point]
    color: int = 1
    step: bool = False


@dataclass(frozen=True)
class Segment:
    """A stretch of the x axis, for example one RL round, from `start` to `end`."""

    label: str
    start: float
    end: float


@dataclass(frozen=True)
class Reference:
    """A horizontal rule, for example a cap or a threshold."""

    label: str
    value: float


@dataclass(frozen=True)
class Chart:
    """What to draw."""

    title: str
    unit: str
    series: list[Series]
    segments: list[Segment] = field(default_factory=list)
    references: list[Reference] = field(default_factory=list)
    x_label: str = "optimizer step"
    scale: Literal["linear", "log", "auto"] = "auto"
    zero: bool = False
    share: bool = False


@dataclass(frozen=True)
class _Frame:
    x: Scale
    y: Scale


def draw(chart: Chart) -> Safe:
    """A figure with its title, legend and SVG. Series without finite points are left out."""
    lines = [
        Series(s.name, thin(_finite(s.points)), s.color, s.step)
        for s in chart.series
        if _finite(s.points)
    ]
    if not lines:
        return join()
    frame = _frame(chart, lines)
    body = [
        _bands(chart.segments, frame),
        _y_axis(frame, chart.share),
        _x_axis(frame.x, chart.x_label),
        *(_line(s, frame) for s in lines),
        *(_reference(r, frame) for r in chart.references if _shown(r.value, frame.y)),
        tag("g", class_="cursor"),
    ]
    log_note = ", log scale" if frame.y.log else ""
    label = f"{chart.title} ({chart.unit}{log_note}) by {chart.x_label}"
    svg = tag(
        "svg",
        *body,
        viewBox=f"0 0 {WIDTH} {HEIGHT}",
        class_="chart",
        role="img",
        aria_label=label,
        data_chart=json_attribute(_hover_data(chart, lines, frame)),
    )
    heading = tag(
        "figcaption",
        tag("span", chart.title, class_="chart-title"),
        tag("span", f"{chart.unit}{log_note}", class_="chart-unit"),
    )
    return tag("figure", heading, svg, _legend(chart, lines), class_="chart-figure")


def _finite(points: Sequence[Point]) -> list[Point]:
    return [(x, y) for x, y in points if abs(x) < _HUGE and abs(y) < _HUGE]


def _frame(chart: Chart, lines: list[Series]) -> _Frame:
    values = [y for s in lines for _, y in s.points]
    log = chart.scale == "log" or (chart.scale == "auto" and wants_log(values))
    log = log and min(values) > 0
    near = [r.value for r in chart.references if _near(r.value, values, log)]
    low, high = domain(values + near, log=log, zero=chart.zero)
    if chart.share and min(values) >= 0 and max(values) <= 1:
        low, high = max(low, 0.0), min(high, 1.0) if max(values) > 0.9 else high
    starts = [s.start for s in chart.segments] or [min(p[0] for s in lines for p in s.points)]
    ends = [s.end for s in chart.segments] or [max(p[0] for s in lines for p in s.points)]
    left, right = min(starts), max(ends)
    if left == right:
        left, right = left - 0.5, right + 0.5
    y = Scale(low, high, HEIGHT - BOTTOM, TOP, log)
    ticks = y.ticks(5)
    widest = max(len(tick_text(tick, ticks, chart.share)) for tick in ticks)
    margin = min(WIDTH / 3, max(LEFT, 10 + 6.7 * widest))
    return _Frame(Scale(left, right, margin, WIDTH - RIGHT), y)


def _near(value: float, values: list[float], log: bool) -> bool:
    """A reference far outside the data would flatten it."""
    if log:
        return value > 0 and min(values) / 10 <= value <= max(values) * 10
    span = max(max(values) - min(values), 1e-12)
    return min(values) - 2 * span <= value <= max(values) + 2 * span


def _shown(value: float, y: Scale) -> bool:
    return y.low <= value <= y.high


def _bands(segments: list[Segment], frame: _Frame) -> Safe:
    """Alternating shades with names, so that one sees where a stage or round begins."""
    if len(segments) < 2:
        return join()
    parts = []
    for index, segment in enumerate(segments):
        left, right = frame.x(segment.start), frame.x(segment.end)
        if index % 2 == 1:
            parts.append(tag("rect", x=left, y=TOP, width=max(0.0, right - left),
                             height=HEIGHT - TOP - BOTTOM, class_="band"))  # fmt: skip
        width = right - left
        label = segment.label
        if width < 6.2 * len(label):
            label = label.rsplit("-", 1)[-1].rsplit(" ", 1)[-1]
        if width >= 5.6 * len(label):
            parts.append(tag("text", label, x=(left + right) / 2, y=TOP - 6, class_="band-label"))
    return tag("g", *parts)


def _y_axis(frame: _Frame, share: bool) -> Safe:
    parts = []
    left = frame.x.start
    ticks = frame.y.ticks(5)
    for tick in ticks:
        at = frame.y(tick)
        parts.append(tag("line", x1=left, x2=WIDTH - RIGHT, y1=at, y2=at, class_="grid"))
        text = tick_text(tick, ticks, share)
        parts.append(tag("text", text, x=left - 6, y=at + 3.5, class_="tick y"))
    return tag("g", *parts)


def tick_text(tick: float, ticks: list[float], share: bool) -> str:
    """The label of a tick; all labels of an axis carry the same decimals."""
    if share:
        step = ticks[1] - ticks[0] if len(ticks) > 1 else 0.1
        return figures.percent(tick, max(0, min(3, -math.floor(math.log10(abs(step) * 100)))))
    size = abs(tick)
    if size >= 1e4:
        for limit, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
            if size >= limit:
                return figures.number(tick / limit, 3) + unit
    return figures.number(tick, 6 if size >= 1e-3 else 2)


def _x_axis(x: Scale, label: str) -> Safe:
    bottom = HEIGHT - BOTTOM
    parts = [tag("line", x1=x.start, x2=x.end, y1=bottom, y2=bottom, class_="axis")]
    ticks = [t for t in x.ticks(7) if float(t).is_integer()] or x.ticks(2)
    for tick in ticks:
        at = x(tick)
        parts.append(tag("line", x1=at, x2=at, y1=bottom, y2=bottom + 4, class_="axis"))
        text = tick_text(tick, ticks, False)
        parts.append(tag("text", text, x=at, y=bottom + 15, class_="tick x"))
    middle = (x.start + x.end) / 2
    parts.append(tag("text", label, x=middle, y=HEIGHT - 5, class_="axis-label"))
    return tag("g", *parts)


def _reference(reference: Reference, frame: _Frame) -> Safe:
    at = frame.y(reference.value)
    text = f"{reference.label} {figures.number(reference.value)}"
    return tag(
        "g",
        tag("line", x1=frame.x.start, x2=WIDTH - RIGHT, y1=at, y2=at, class_="reference"),
        tag("text", text, x=WIDTH - RIGHT - 2, y=at - 4, class_="reference-label"),
    )


def _line(series: Series, frame: _Frame) -> Safe:
    at = [(frame.x(x), frame.y(y)) for x, y in series.points]
    if len(at) == 1:
        return tag("circle", cx=at[0][0], cy=at[0][1], r=3, class_=f"dot c{series.color}")
    parts = [f"M{at[0][0]:.1f} {at[0][1]:.1f}"]
    for (_, _), (x, y) in pairwise(at):
        parts.append(f"H{x:.1f}V{y:.1f}" if series.step else f"L{x:.1f} {y:.1f}")
    if series.step:
        parts.append(f"H{frame.x.end:.1f}")  # a step holds until the next value
    path = tag("path", d="".join(parts), class_=f"line c{series.color}")
    if len(at) > SPARSE or series.step:
        return path
    dots = (tag("circle", cx=x, cy=y, r=2.2, class_=f"dot c{series.color}") for x, y in at)
    return join(path, *dots)


def _legend(chart: Chart, lines: list[Series]) -> Safe:
    entries = [
        tag("span", tag("i", class_=f"key k{s.color}{' step' if s.step else ''}"), s.name)
        for s in lines
    ]
    return tag("div", *entries, class_="legend")


def _hover_data(chart: Chart, lines: list[Series], frame: _Frame) -> dict[str, object]:
    return {
        "x": [frame.x.low, frame.x.high, frame.x.start, frame.x.end],
        "y": [frame.y.low, frame.y.high, HEIGHT - BOTTOM, TOP, int(frame.y.log)],
        "l": chart.x_label,
        "p": int(chart.share),
        "g": [[s.label, s.start] for s in chart.segments],
        "s": [
            [s.name, s.color, int(s.step), [_short(v) for point in s.points for v in point]]
            for s in lines
        ],
    }


def _short(value: float) -> float | int:
    """Six significant digits keep the file small."""
    return int(value) if float(value).is_integer() and abs(value) < 1e15 else float(f"{value:.6g}")
