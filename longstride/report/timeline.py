"""When each task ran: one bar a task, attempts apart, cached tasks as diamonds."""

from __future__ import annotations

from longstride.report import figures, states
from longstride.report.anchors import Anchors
from longstride.report.dag_figure import details
from longstride.report.markup import Safe, tag
from longstride.report.record import AttemptRecord, CollectedRun
from longstride.report.scales import Scale
from longstride.report.tree import Tree
from schemas.run import TaskRecord

WIDTH, LABEL, RIGHT = 1120, 236, 76
LINE, TOP, STAGE_GAP = 16, 26, 5
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 43200, 86400)


def draw(record: CollectedRun, tree: Tree, anchors: Anchors) -> Safe:
    """The figure, or a sentence when nothing has started."""
    shown = [p for p in tree.leaves() if tree.tasks[p].started_at is not None]
    if not shown:
        return tag("p", "No task has started yet.", class_="empty")
    times = [t for p in shown for t in (tree.tasks[p].started_at, tree.tasks[p].finished_at)
             if t is not None]  # fmt: skip
    origin = min(times)
    end = max(max(times), record.finished_at or 0.0) - origin
    scale = Scale(0.0, max(end, 1e-3), LABEL, WIDTH - RIGHT)
    y, stage, parts = float(TOP), None, []
    for path in shown:
        here = tree.stage(path)
        if stage is not None and here != stage:
            y += STAGE_GAP
        parts.append(_bar(tree.tasks[path], here if here != stage else "", y, origin, scale,
                          record, anchors))  # fmt: skip
        stage, y = here, y + LINE
    grid = [_tick(t, scale, y) for t in _ticks(scale.high)]
    waiting = sum(1 for _ in tree.leaves()) - len(shown)
    note = tag("p", f"{figures.plural(waiting, 'task')} not started.", class_="note")
    svg = tag("svg", *grid, *parts, viewBox=f"0 0 {WIDTH} {y + 6:g}", class_="timeline",
              role="group", aria_label="Tasks over the time since the run started")  # fmt: skip
    return tag("div", tag("div", svg, class_="scroll"), note if waiting else None)


def _ticks(span: float) -> list[float]:
    step = next((s for s in _STEPS if span / s <= 12), max(_STEPS[-1], span / 9))
    return [k * step for k in range(int(span / step) + 1)]


def _tick(seconds: float, scale: Scale, bottom: float) -> Safe:
    x = scale(seconds)
    text = "0" if seconds == 0 else figures.duration(seconds).replace(" 00 s", "").replace(
        " 00 min", "")  # fmt: skip
    return tag("g", tag("line", x1=x, x2=x, y1=TOP - 6, y2=bottom, class_="grid"),
               tag("text", text, x=x, y=TOP - 11, class_="tick x"))  # fmt: skip


def _bar(
    task: TaskRecord,
    stage: str,
    y: float,
    origin: float,
    scale: Scale,
    record: CollectedRun,
    anchors: Anchors,
) -> Safe:
    tone = states.tone(task.state)
    start = (task.started_at or origin) - origin
    end = scale.high if task.finished_at is None else task.finished_at - origin
    x1, x2 = scale(start), scale(max(end, start))
    middle = y + LINE / 2
    parts = [
        tag("rect", x=0, y=y, width=WIDTH, height=LINE, class_="hit"),
        tag("text", figures.shorten(stage.rsplit(" › ", 1)[-1], 15), x=0, y=middle + 3.5,  # noqa: RUF001
            class_="bar-stage") if stage else None,
        tag("text", figures.shorten(task.display_name, 20), x=LABEL - 10, y=middle + 3.5,
            class_="bar-name"),
    ]  # fmt: skip
    after = x2
    if task.cache_hit:
        parts.append(states.symbol("cached", x1 - 5, middle - 5, 10))
        after = x1 + 5
    else:
        for attempt in _attempts(task, record.attempt_log.get(task.path, [])):
            parts.append(_span(attempt, tone, origin, scale, middle))
    if tone in ("bad", "run", "stop"):
        parts.append(states.symbol(tone, after + 3, middle - 6, 12))
        after += 15
    text = "cached" if task.cache_hit else figures.duration(end - start)
    if task.attempts > 1:
        text += f" · {task.attempts} attempts"
    parts.append(tag("text", text, x=after + 5, y=middle + 3.5, class_="bar-time"))
    return tag("a", *parts, href=f"#{anchors.best(task.path)}", class_="bar",
               data_tip=details(task, record))  # fmt: skip


def _attempts(
    task: TaskRecord, log: list[AttemptRecord]
) -> list[tuple[float | None, float | None, bool]]:
    """Start, end and whether a later attempt replaced it."""
    known = [a for a in log if a.started_at is not None]
    if len(known) < 2:
        return [(task.started_at, task.finished_at, False)]
    return [(a.started_at, a.finished_at, i < len(known) - 1) for i, a in enumerate(known)]


def _span(
    attempt: tuple[float | None, float | None, bool],
    tone: str,
    origin: float,
    scale: Scale,
    middle: float,
) -> Safe:
    start, end, replaced = attempt
    x1 = scale((start or origin) - origin)
    x2 = scale(scale.high if end is None else end - origin)
    return tag("rect", x=x1, y=middle - 4.5, width=max(1.5, x2 - x1), height=9, rx=2,
               class_=f"span {'bad replaced' if replaced else tone}")  # fmt: skip
