"""The benchmark before and after RL, with 95% intervals and paired differences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longstride.report import figures
from longstride.report.markup import Safe, join, tag
from longstride.report.pairing import Comparison, compare
from longstride.report.scales import Scale
from schemas.rows import EvalResult, EvalSample, Interval
from schemas.run import Evaluation, RunRecord

WIDTH, LABEL, LINE, TOP, BOTTOM = 1120, 250, 30, 28, 36
SPLIT = 700
_SAMPLES = 6


@dataclass(frozen=True)
class Row:
    """One line of the figure and the table."""

    name: str
    kind: str
    intervals: list[Interval | None]
    gain: Interval | None


def ends(record: RunRecord) -> tuple[EvalResult, EvalResult] | None:
    """The first and the last benchmark, when there are two."""
    if len(record.evaluations) < 2:
        return None
    return record.evaluations[0].result, record.evaluations[-1].result


def draw(record: RunRecord) -> Safe:
    """Figure, table, lengths and a few answers."""
    if not record.evaluations:
        return tag("p", "No benchmark has finished yet.", class_="empty")
    comparison = compare(record.evaluations)
    rows = _rows(record.evaluations, comparison)
    labels = [e.result.label for e in record.evaluations]
    why = None
    if comparison is not None and comparison.reason:
        why = tag("p", f"No paired difference: {comparison.reason}",
                  class_="callout warn")  # fmt: skip
    return join(
        _setting(record.evaluations[-1].result),
        why,
        _figure(rows, labels),
        _table(rows, labels, record.evaluations),
        tag("h3", "Lengths and truncation"),
        _lengths(record.evaluations),
        *(_samples(e) for e in record.evaluations),
    )


def _setting(result: EvalResult) -> Safe:
    return tag(
        "p",
        tag("span", f"avg@{result.samples_per_problem}"),
        tag("span", f"{result.average.problems:,} problems"),
        tag("span", f"temperature {figures.number(result.temperature)}"),
        tag("span", f"top-p {figures.number(result.top_p)}"),
        tag("span", f"window {result.window:,} tokens"),
        tag("span", "intervals: 95%, Student t over problems"),
        class_="factline",
    )


def _rows(evaluations: Sequence[Evaluation], comparison: Comparison | None) -> list[Row]:
    results = [e.result for e in evaluations]
    gains = comparison.gains if comparison is not None else {}
    rows = [Row("All problems", "all", [r.average for r in results], gains.get(""))]
    families = dict.fromkeys(f for r in results for f in r.by_family)
    levels = dict.fromkeys(level for r in results for level in r.by_level)
    for family in families:
        rows.append(Row(family, "family", [r.by_family.get(family) for r in results],
                        gains.get(family)))  # fmt: skip
        own = sorted((x for x in levels if x.rpartition("/")[0] == family), key=_level)
        rows += [Row(x, "level", [r.by_level.get(x) for r in results], gains.get(x)) for x in own]
    orphans = [x for x in levels if x.rpartition("/")[0] not in families]
    rows += [Row(x, "level", [r.by_level.get(x) for r in results], gains.get(x)) for x in orphans]
    return rows


def _level(name: str) -> tuple[int, str]:
    tail = name.rpartition("/")[2]
    return (int(tail) if tail.isdecimal() else 0, tail)


def row_name(row: Row) -> str:
    """A level reads as `level 2` under its family."""
    tail = row.name.rpartition("/")[2]
    return f"level {tail}" if row.kind == "level" and tail.isdecimal() else row.name


def _figure(rows: list[Row], labels: list[str]) -> Safe:
    height = TOP + LINE * len(rows) + BOTTOM
    gains = [row.gain for row in rows if row.gain is not None]
    share = Scale(0.0, 1.0, LABEL, (SPLIT if gains else WIDTH) - 30)
    parts = [_share_axis(share, height)]
    delta = None
    if gains:
        reach = max(0.05, *(abs(v) for g in gains for v in (g.low, g.high))) * 1.08
        delta = Scale(-reach, reach, SPLIT + 30, WIDTH - 20)
        parts.append(_delta_axis(delta, height))
    for index, row in enumerate(rows):
        parts.append(_figure_row(row, TOP + LINE * index, labels, share, delta))
    svg = tag("svg", *parts, viewBox=f"0 0 {WIDTH} {height}", class_="forest", role="img",
              aria_label="Benchmark by family and level with 95% intervals")  # fmt: skip
    legend = tag("div", *(tag("span", tag("i", class_=f"key d{_slot(i, len(labels))}"), label)
                          for i, label in enumerate(labels)), class_="legend")  # fmt: skip
    return tag("figure", legend, tag("div", svg, class_="scroll"), class_="wide-figure")


def _slot(index: int, count: int) -> int:
    """The last benchmark has the strong colour, whatever came before is muted."""
    return 1 if index == count - 1 and count > 1 else 0 if index == 0 else 2


def _share_axis(scale: Scale, height: float) -> Safe:
    parts = []
    for tick in scale.ticks(5):
        x = scale(tick)
        parts.append(tag("line", x1=x, x2=x, y1=TOP - 8, y2=height - BOTTOM, class_="grid"))
        parts.append(tag("text", figures.percent(tick, 0), x=x, y=height - BOTTOM + 14,
                         class_="tick x"))  # fmt: skip
    middle = (scale.start + scale.end) / 2
    parts.append(tag("text", "share of samples that are correct", x=middle, y=height - 5,
                     class_="axis-label"))  # fmt: skip
    return tag("g", *parts)


def _delta_axis(scale: Scale, height: float) -> Safe:
    parts = []
    for tick in scale.ticks(6):
        x = scale(tick)
        kind = "zero" if tick == 0 else "grid"
        parts.append(tag("line", x1=x, x2=x, y1=TOP - 8, y2=height - BOTTOM, class_=kind))
        parts.append(tag("text", "0" if tick == 0 else figures.points(tick, 0), x=x,
                         y=height - BOTTOM + 14, class_="tick x"))  # fmt: skip
    middle = (scale.start + scale.end) / 2
    parts.append(tag("text", "paired gain, percentage points", x=middle, y=height - 5,
                     class_="axis-label"))  # fmt: skip
    return tag("g", *parts)


def _figure_row(row: Row, y: float, labels: list[str], share: Scale, delta: Scale | None) -> Safe:
    middle = y + LINE / 2
    parts: list[Safe] = [tag("rect", x=0, y=y, width=WIDTH, height=LINE, class_="hit")]
    indent = 18 if row.kind == "level" else 0
    parts.append(tag("text", figures.shorten(row_name(row), 30), x=indent, y=middle + 4,
                     class_=f"row-{row.kind}"))  # fmt: skip
    tip = [row.name]
    count = len(row.intervals)
    for index, interval in enumerate(row.intervals):
        if interval is None:
            continue
        offset = 0.0 if count == 1 else (index / (count - 1) - 0.5) * 10
        parts.append(_whisker(interval, share, middle + offset, f"d{_slot(index, count)}"))
        tip.append(f"{labels[index]} {interval_text(interval)}")
    if row.gain is not None and delta is not None:
        parts.append(_whisker(row.gain, delta, middle, gain_tone(row.gain)))
        tip.append(f"gain {gain_text(row.gain)} pp")
    return tag("g", *parts, class_="forest-row", data_tip="\n".join(tip))


def _whisker(interval: Interval, scale: Scale, y: float, kind: str) -> Safe:
    low, high = scale(max(interval.low, scale.low)), scale(min(interval.high, scale.high))
    return tag(
        "g",
        tag("line", x1=low, x2=high, y1=y, y2=y),
        tag("circle", cx=scale(interval.mean), cy=y, r=4),
        class_=f"whisker {kind}",
    )


def gain_tone(gain: Interval) -> str:
    """Colour of a gain: only an interval clear of zero gets one."""
    return "up" if gain.low > 0 else "down" if gain.high < 0 else "flat"


def interval_text(interval: Interval) -> str:
    """`31.2 % [27.9, 34.6]`."""
    low, high = figures.fixed(100 * interval.low, 1), figures.fixed(100 * interval.high, 1)
    return f"{figures.percent(interval.mean)} [{low}, {high}]"


def gain_text(gain: Interval) -> str:
    """`+13.6 [+9.1, +18.1]`."""
    return f"{figures.points(gain.mean)} [{figures.points(gain.low)}, {figures.points(gain.high)}]"


def _table(rows: list[Row], labels: list[str], evaluations: Sequence[Evaluation]) -> Safe:
    gains = any(row.gain is not None for row in rows)
    heads = [tag("th", "Problems of", scope="col"), tag("th", "n", class_="num", scope="col")]
    for label in labels:
        heads.append(tag("th", label, class_="num", scope="col"))
        heads.append(tag("th", "95% interval", class_="num", scope="col"))
    if gains:
        heads.append(tag("th", "paired gain, pp", class_="num", scope="col"))
        heads.append(tag("th", "95% interval", class_="num", scope="col"))
    body = [tag("tr", *_cells(row, gains), class_=f"row-{row.kind}") for row in rows]
    return tag("div", tag("table", tag("thead", tag("tr", *heads)), tag("tbody", *body),
                          class_="benchmark"), class_="scroll")  # fmt: skip


def _cells(row: Row, gains: bool) -> list[Safe]:
    known = [i for i in row.intervals if i is not None]
    count = f"{known[0].problems:,}" if known else figures.MISSING
    cells = [tag("td", row_name(row)), tag("td", count, class_="num")]
    for interval in row.intervals:
        cells += interval_cells(interval, percent=True)
    if gains:
        cells += interval_cells(row.gain, percent=False)
    return cells


def interval_cells(interval: Interval | None, *, percent: bool) -> list[Safe]:
    """Mean and interval, each with its exact value."""
    if interval is None:
        return [tag("td", figures.MISSING, class_="num")] * 2

    def show(value: float) -> Safe:
        text = figures.fixed(100 * value, 1) if percent else figures.points(value)
        return figures.value(value, text)

    return [
        tag("td", show(interval.mean), "\u2009%" if percent else None, class_="num mean"),
        tag("td", "[", show(interval.low), ", ", show(interval.high), "]", class_="num interval"),
    ]


def _lengths(evaluations: Sequence[Evaluation]) -> Safe:
    names = ("", "Median length", "p99 length", "Window", "Truncated", "Not judged", "Samples",
             "Weights", "Verifier")  # fmt: skip
    head = tag("tr", *(tag("th", n, class_="num" if 0 < i < 7 else "", scope="col")
                       for i, n in enumerate(names)))  # fmt: skip
    body = []
    for result in (e.result for e in evaluations):
        numbers = (
            figures.value(result.length_p50),
            figures.value(result.length_p99),
            figures.value(result.window),
            figures.value(result.truncated_share, figures.percent(result.truncated_share)),
            figures.value(result.unjudged_share, figures.percent(result.unjudged_share)),
            figures.value(result.average.samples),
        )
        body.append(tag(
            "tr",
            tag("td", result.label),
            *(tag("td", n, class_="num") for n in numbers),
            tag("td", tag("code", figures.shorten(result.checkpoint_digest, 22),
                          title=result.checkpoint_digest)),
            tag("td", result.verifier_version),
        ))  # fmt: skip
    return tag("div", tag("table", tag("thead", head), tag("tbody", *body)), class_="scroll")


def _samples(evaluation: Evaluation) -> Safe | None:
    shown = [s for s in evaluation.samples if s.text][:_SAMPLES]
    if not shown:
        return None
    summary = tag("summary", f"{figures.plural(len(shown), 'answer')} of {evaluation.result.label}")
    return tag("details", summary, *map(_sample, shown), class_="more")


def _sample(sample: EvalSample) -> Safe:
    verdict = {True: "correct", False: "wrong", None: "not judged"}[sample.correct]
    facts = f"{sample.prompt_id} · {sample.family} level {sample.level} · {verdict} · " \
            f"{figures.plural(sample.length, 'token')} · {sample.finish_reason}"  # fmt: skip
    return tag("div", tag("div", facts, class_="fine"), tag("pre", sample.text[:4000]),
               class_="answer")  # fmt: skip
