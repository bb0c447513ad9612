"""Context extension: perplexity by position and passkey retrieval, before and after each stage."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice

from longstride.report import figures
from longstride.report.markup import Safe, join, tag
from schemas.run import RunRecord, TaskMetrics

_POSITIONS = re.compile(r"validation/perplexity/positions_(\d{1,12})_(\d{1,12})\Z")
_CELL = re.compile(r"passkey/length_(\d{1,12})/depth_(\d{1,3})/(accuracy|rank|margin)\Z")
_SCORES = (
    ("accuracy", "key tokens that come first"),
    ("margin", "log-probability over other keys, nats"),
)
_MOST = 24
"""Rows and columns of a table; a stage has eight buckets, three lengths and five depths."""

Pair = tuple[float | None, float | None]
"""Value before the first step and after the last."""


@dataclass
class _Stage:
    name: str
    positions: dict[tuple[int, int], Pair] = field(default_factory=dict)
    cells: dict[tuple[str, int, int], Pair] = field(default_factory=dict)
    spikes: float | None = None
    back_offs: float | None = None


def owns(name: str) -> bool:
    """Whether a metric is shown here and not among the curves."""
    return bool(_POSITIONS.match(name) or _CELL.match(name))


def draw(record: RunRecord) -> Safe:
    """One block a stage that measured its context."""
    stages = [stage for task in record.metrics if (stage := _stage(task)) is not None]
    if not stages:
        return tag("p", "No context-extension stage has measured anything yet.", class_="empty")
    return join(*map(_block, stages))


def _stage(task: TaskMetrics) -> _Stage | None:
    found = _Stage(task.stage)
    end = max((point.step for point in task.points), default=0)
    for point in task.points:
        if place := _POSITIONS.match(point.name):
            bucket = (int(place[1]), int(place[2]))
            found.positions[bucket] = _put(found.positions.get(bucket), point.step, point.value)
        elif place := _CELL.match(point.name):
            cell = (place[3], int(place[1]), int(place[2]))
            found.cells[cell] = _put(found.cells.get(cell), point.step, point.value)
        elif point.name == "train/spikes" and point.step <= end:
            found.spikes = point.value
        elif point.name == "train/back_offs" and point.step <= end:
            found.back_offs = point.value
    return found if found.positions or found.cells else None


def _put(pair: Pair | None, step: int, value: float) -> Pair:
    """Step 0 is before the stage; whatever comes later is after it."""
    before, after = pair or (None, None)
    return (value, after) if step == 0 else (before, value)


def _block(stage: _Stage) -> Safe:
    facts = []
    if stage.spikes is not None:
        said = figures.plural(int(stage.spikes), "step")
        facts.append(tag("span", f"{said} left out as spikes"))
    if stage.back_offs is not None:
        facts.append(tag("span", figures.plural(int(stage.back_offs), "back-off")))
    return join(
        tag("h3", stage.name),
        tag("p", *facts, class_="factline") if facts else None,
        _positions(stage) if stage.positions else None,
        *(_passkeys(stage, score, title) for score, title in _SCORES),
    )


def _positions(stage: _Stage) -> Safe:
    head = tag(
        "tr",
        tag("th", "Positions in the document", scope="col"),
        *(tag("th", name, class_="num", scope="col")
          for name in ("perplexity before", "after", "change")),
    )  # fmt: skip
    rows = []
    for (first, end), (before, after) in islice(sorted(stage.positions.items()), _MOST):
        change = figures.MISSING
        if before is not None and after is not None and before > 0:
            change = figures.percent(after / before - 1)
        rows.append(tag(
            "tr",
            tag("td", f"{first:,} to {end - 1:,}"),
            tag("td", _number(before), class_="num"),
            tag("td", _number(after), class_="num mean"),
            tag("td", change, class_="num"),
        ))  # fmt: skip
    return _table(head, rows)


def _passkeys(stage: _Stage, score: str, title: str) -> Safe | None:
    """Rows are lengths, columns depths, each cell `before → after`."""
    cells = {place[1:]: pair for place, pair in stage.cells.items() if place[0] == score}
    if not cells:
        return None
    lengths = list(islice(sorted({length for length, _ in cells}), _MOST))
    depths = list(islice(sorted({depth for _, depth in cells}), _MOST))
    show = figures.percent if score == "accuracy" else _number
    head = tag(
        "tr",
        tag("th", f"Passkey: {title}", scope="col"),
        *(tag("th", f"key at {depth}\u2009%", class_="num", scope="col") for depth in depths),
    )
    rows = [
        tag("tr", tag("td", f"{length:,} tokens"), *_cells(cells, length, depths, show))
        for length in lengths
    ]
    return _table(head, rows)


def _cells(
    cells: dict[tuple[int, int], Pair],
    length: int,
    depths: list[int],
    show: Callable[[float | None], str | Safe],
) -> Iterator[Safe]:
    for depth in depths:
        before, after = cells.get((length, depth), (None, None))
        yield tag("td", show(before), " → ", tag("b", show(after)), class_="num")


def _number(value: float | None) -> str:
    return figures.number(value, 3)


def _table(head: Safe, rows: list[Safe]) -> Safe:
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="context")
    return tag("div", table, class_="scroll")
