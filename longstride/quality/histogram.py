"""Histograms of measured columns as inline SVG, with the bounds of their rules; no script."""

from __future__ import annotations

from html import escape

from longstride.quality.suites import CheckSpec
from schemas.verdict import ColumnProfile

_WIDTH, _HEIGHT, _BASE = 320, 84, 66


def histogram(name: str, column: ColumnProfile, specs: list[CheckSpec]) -> str:
    """One figure: bars of the column, a line at every bound of a rule about it, and quantiles."""
    bounds = sorted({
        float(spec.arguments[end])
        for spec in specs
        for end in ("min_value", "max_value")
        if isinstance(spec.arguments.get(end), int | float)
    })  # fmt: skip
    low, high = _range(column, bounds)
    caption = (
        f"<b>{escape(name)}</b> <small>{column.count:,} rows; median {_number(column.p50)}, "
        f"1% {_number(column.p01)}, 99% {_number(column.p99)}</small>"
    )
    parts = _bars(column, low, high)
    for bound in bounds:
        if low <= bound <= high:
            at = _place(bound, low, high)
            side = "end" if at > _WIDTH / 2 else "start"
            shift = -3 if side == "end" else 3
            parts.append(
                f'<line class="bound" x1="{at:.1f}" x2="{at:.1f}" y1="4" y2="{_BASE}"/>'
                f'<text class="bound" x="{at + shift:.1f}" y="12" text-anchor="{side}">'
                f"{_number(bound)}</text>"
            )
    parts.append(f'<line class="axis" x1="0" x2="{_WIDTH}" y1="{_BASE}" y2="{_BASE}"/>')
    parts.append(f'<text x="0" y="{_HEIGHT - 4}">{_number(low)}</text>')
    parts.append(f'<text x="{_WIDTH}" y="{_HEIGHT - 4}" text-anchor="end">{_number(high)}</text>')
    label = escape(f"Histogram of {name} from {_number(column.low)} to {_number(column.high)}")
    return (
        f'<figure><figcaption>{caption}</figcaption><svg role="img" aria-label="{label}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg></figure>'
    )


def _range(column: ColumnProfile, bounds: list[float]) -> tuple[float, float]:
    """The values' range, widened to bounds that are not so far off that they would squeeze it."""
    low, high = column.low, column.high
    reach = max(high - low, abs(high), abs(low), 1e-9)
    near = [bound for bound in bounds if low - reach <= bound <= high + reach]
    low, high = min([low, *near]), max([high, *near])
    return (low - 0.5, high + 0.5) if low == high else (low, high)


def _bars(column: ColumnProfile, low: float, high: float) -> list[str]:
    heights = column.histogram
    tallest = max([*heights, 1])
    width = (column.high - column.low) / len(heights) if heights else 0.0
    bars = []
    for number, count in enumerate(heights):
        if not count:
            continue
        left = _place(column.low + number * width, low, high)
        right = _place(column.low + (number + 1) * width, low, high)
        height = max(1.5, (_BASE - 16) * count / tallest)
        width_shown = max(3.0, right - left - 1)
        bars.append(
            f'<rect x="{left:.1f}" y="{_BASE - height:.1f}" width="{width_shown:.1f}" '
            f'height="{height:.1f}"><title>{count:,} rows</title></rect>'
        )
    return bars


def _place(value: float, low: float, high: float) -> float:
    return min(_WIDTH - 1.0, max(1.0, _WIDTH * (value - low) / (high - low)))


def _number(value: float) -> str:
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
