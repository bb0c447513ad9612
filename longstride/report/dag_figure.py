"""The DAG drawn: boxes for tasks, hexagons for gates, stages as labelled rows."""

from __future__ import annotations

from longstride.report import figures, states
from longstride.report.anchors import Anchors
from longstride.report.dag import (
    COLUMNS,
    GUTTER,
    NODE_HEIGHT,
    NODE_WIDTH,
    ROW_PADDING,
    Layout,
    Node,
    Row,
    lay_out,
)
from longstride.report.markup import Safe, join, json_attribute, tag
from longstride.report.outcomes import outcomes
from longstride.report.record import CollectedRun
from longstride.report.tree import Tree
from schemas.run import TaskRecord

_BEND = 9


def draw(record: CollectedRun, tree: Tree, anchors: Anchors) -> Safe:
    """The figure with its key."""
    layout = lay_out(tree)
    if not layout.nodes:
        return tag("p", "No task is known yet.", class_="empty")
    warned = {path for path, index in anchors.verdict_of.items()
              if any(not c.passed for c in record.verdicts[index].checks)}  # fmt: skip
    neighbours = _neighbours(tree, layout)
    told = outcomes(record, tree)
    svg = tag(
        "svg",
        *(_row(row, tree, layout, told.get(row.group or "", [])) for row in layout.rows),
        *_links(layout),
        *(_edge(layout.nodes[a], layout.nodes[b], layout) for a, b in layout.edges),
        *(
            _node(node, tree.tasks[path], record, anchors, neighbours[path], path in warned)
            for path, node in layout.nodes.items()
        ),
        viewBox=f"-1 -1 {layout.width + 2:g} {layout.height + 2:g}",
        class_="dag",
        role="group",
        aria_label="Tasks of the run with their states and durations",
    )
    return tag("div", svg, class_="scroll")


def key() -> Safe:
    """What shapes and symbols mean."""
    gate = tag("svg", tag("path", d="M4 1h16l4 6-4 6H4L0 7z"), viewBox="-1 0 26 14", class_="shape")
    task = tag("svg", tag("rect", x=0, y=1, width=24, height=12, rx=3), viewBox="-1 0 26 14",
               class_="shape")  # fmt: skip
    names = [("ok", "succeeded"), ("bad", "failed or blocked"), ("run", "running"),
             ("wait", "pending"), ("skip", "skipped"), ("stop", "cancelled"),
             ("cached", "from cache"), ("retry", "more than one attempt"),
             ("warn", "gate passed with warnings")]  # fmt: skip
    return tag(
        "div",
        tag("span", task, "task"),
        tag("span", gate, "gate"),
        *(tag("span", states.icon(name), text) for name, text in names),
        class_="legend",
    )


def _neighbours(tree: Tree, layout: Layout) -> dict[str, list[int]]:
    """Indices of the direct upstream and downstream boxes, for highlighting."""
    index = {path: number for number, path in enumerate(layout.nodes)}
    near: dict[str, set[int]] = {path: set() for path in layout.nodes}
    for target, sources in tree.edges.items():
        for source in sources:
            if source in index and target in index:
                near[source].add(index[target])
                near[target].add(index[source])
    return {path: sorted(numbers) for path, numbers in near.items()}


def _row(row: Row, tree: Tree, layout: Layout, said: list[str]) -> Safe:
    left = GUTTER - 8
    members = [n.path for n in layout.nodes.values() if n.row == layout.rows.index(row)]
    parts = [tag("rect", x=left, y=row.y, width=layout.width - left, height=row.height, rx=8,
                 class_="stage" if row.label else "stage loose")]  # fmt: skip
    name = row.label.rsplit(" › ", 1)[-1]  # noqa: RUF001
    middle = row.y + row.height / 2
    if name:
        parts.append(tag("text", figures.shorten(name, 15), x=GUTTER + 4, y=middle - 2,
                         class_="stage-name"))  # fmt: skip
        parts.append(tag("text", _row_note(row, tree, members), x=GUTTER + 4, y=middle + 13,
                         class_="stage-note"))  # fmt: skip
    for line, text in enumerate(said if row.columns < COLUMNS else []):
        at = middle + 4 + 15 * (line - (len(said) - 1) / 2)
        parts.append(tag("text", text, x=layout.width - 14, y=at, class_="stage-outcome"))
    return tag("g", *parts)


def _row_note(row: Row, tree: Tree, members: list[str]) -> str:
    tasks = [tree.tasks[path] for path in members]
    started = [t.started_at for t in tasks if t.started_at is not None]
    finished = [t.finished_at for t in tasks if t.finished_at is not None]
    if started and len(finished) == len(tasks):
        return figures.duration(max(finished) - min(started))
    active = [t for t in tasks if t.state == "RUNNING"]
    return f"{len(active)} running" if active else figures.plural(len(tasks), "task")


def _links(layout: Layout) -> list[Safe]:
    """Edges between rows: down the left side; those that skip rows keep further out."""
    lanes: list[int] = []
    parts: list[Safe] = []
    for a, b in layout.links:
        start = layout.rows[a].y + layout.rows[a].height
        end = layout.rows[b].y
        if b == a + 1:
            x = GUTTER + 12.0
            parts.append(_arrow(f"M{x} {start:g}V{end - 1:g}", x, end))
            continue
        lane = next((i for i, until in enumerate(lanes) if until <= a), len(lanes))
        if lane == len(lanes):
            lanes.append(0)
        lanes[lane] = b
        x = max(2.0, GUTTER - 16 - 7.0 * lane)
        top, bottom = start - 10, end + 10
        edge = GUTTER - 8
        parts.append(tag("path", class_="link", d=(
            f"M{edge} {top:g}H{x + 5:g}Q{x:g} {top:g} {x:g} {top + 5:g}V{bottom - 5:g}"
            f"Q{x:g} {bottom:g} {x + 5:g} {bottom:g}H{edge - 2}")))  # fmt: skip
        parts.append(tag("path", class_="head",
                         d=f"M{edge} {bottom:g}l-5 -3v6z"))  # fmt: skip
    return parts


def _arrow(path: str, x: float, y: float) -> Safe:
    return join(tag("path", d=path, class_="link"),
                tag("path", d=f"M{x} {y:g}l-3 -5h6z", class_="head"))  # fmt: skip


def _edge(a: Node, b: Node, layout: Layout) -> Safe:
    x1, y1 = a.x + NODE_WIDTH, a.y + NODE_HEIGHT / 2
    x2, y2 = b.x, b.y + NODE_HEIGHT / 2
    if b.column > a.column + 1:
        path = _around(x1, y1, x2, y2, layout.rows[a.row])
    elif y1 == y2:
        path = f"M{x1:g} {y1:g}H{x2 - 4:g}"
    else:
        path = f"M{x1:g} {y1:g}C{x1 + _BEND:g} {y1:g} {x2 - _BEND:g} {y2:g} {x2 - 4:g} {y2:g}"
    head = tag("path", d=f"M{x2:g} {y2:g}l-5 -3v6z", class_="head")
    return join(tag("path", d=path, class_="link"), head)


def _around(x1: float, y1: float, x2: float, y2: float, row: Row) -> str:
    """Past the boxes in between: along the upper or lower padding of the row, the nearer one."""
    below = y1 > row.y + row.height / 2
    lane = row.y + row.height - ROW_PADDING / 2 if below else row.y + ROW_PADDING / 2
    turn = 5 if below else -5
    out, back = x1 + 5, x2 - 9
    return (f"M{x1:g} {y1:g}H{out - 4:g}Q{out:g} {y1:g} {out:g} {y1 + turn:g}V{lane - turn:g}"
            f"Q{out:g} {lane:g} {out + 5:g} {lane:g}H{back - 5:g}"
            f"Q{back:g} {lane:g} {back:g} {lane - turn:g}V{y2 + turn:g}"
            f"Q{back:g} {y2:g} {back + 4:g} {y2:g}")  # fmt: skip


def _node(
    node: Node,
    task: TaskRecord,
    record: CollectedRun,
    anchors: Anchors,
    near: list[int],
    warned: bool,
) -> Safe:
    tone = states.tone(task.state)
    shape = tag("path", d=_hexagon(node)) if node.gate else tag(
        "rect", x=node.x, y=node.y, width=NODE_WIDTH, height=NODE_HEIGHT, rx=6
    )  # fmt: skip
    inset = 12 if node.gate else 8
    name = figures.shorten(task.display_name or task.path.rsplit("/", 1)[-1], 15 if node.gate
                           else 16)  # fmt: skip
    mark = "warn" if warned and tone == "ok" else tone
    note = _note(task)
    parts = [
        shape,
        states.symbol(mark, node.x + inset - 2, node.y + 5, 13),
        tag("text", name, x=node.x + inset + 14, y=node.y + 16, class_="node-name"),
        tag("text", note, x=node.x + inset + 14, y=node.y + 30, class_="node-note"),
    ]
    right = node.x + NODE_WIDTH - (20 if node.gate else 16)
    if task.cache_hit:
        parts.append(states.symbol("cached", right, node.y + 22, 10))
    if task.attempts > 1:
        parts.append(states.symbol("retry", right - 13 * task.cache_hit, node.y + 21, 11))
    return tag(
        "a",
        *parts,
        href=f"#{anchors.best(task.path)}",
        class_=f"node {tone}{' gate' if node.gate else ''}",
        data_tip=details(task, record),
        data_near=json_attribute(near),
        aria_label=f"{name}, {states.word(task.state)}, {note}",
    )


def _hexagon(node: Node) -> str:
    cut, w, h = 9, NODE_WIDTH, NODE_HEIGHT
    return (f"M{node.x + cut:g} {node.y:g}h{w - 2 * cut}l{cut} {h / 2:g}l{-cut} {h / 2:g}"
            f"h{2 * cut - w}l{-cut} {-h / 2:g}z")  # fmt: skip


def _note(task: TaskRecord) -> str:
    if task.cache_hit:
        return "cached"
    if task.started_at is not None and task.finished_at is not None:
        return figures.duration(task.finished_at - task.started_at)
    return states.word(task.state).lower()


def details(task: TaskRecord, record: CollectedRun) -> str:
    """Everything about a task in a few lines, for hovering."""
    lines = [task.path, states.word(task.state)]
    if task.started_at is not None:
        lines.append(f"started {figures.moment(task.started_at)}")
    if task.started_at is not None and task.finished_at is not None:
        lines.append(f"took {figures.duration(task.finished_at - task.started_at)}")
    if task.cpu_seconds is not None:
        lines.append(f"CPU {figures.duration(task.cpu_seconds)}")
    if task.peak_memory_bytes is not None:
        lines.append(f"peak memory {figures.memory(task.peak_memory_bytes)}")
    if task.attempts > 1:
        lines.append(f"{task.attempts} attempts")
    if task.cache_hit:
        lines.append("outputs came from the cache")
    if reason := record.cache_reasons.get(task.path):
        lines.append(f"cache: {reason}")
    if task.depends_on:
        names = [path.rsplit("/", 1)[-1] for path in task.depends_on]
        lines.append("after " + ", ".join(names[:6]) + (" …" if len(names) > 6 else ""))
    if task.error:
        lines.append(figures.shorten(task.error, 300))
    return "\n".join(lines)
