"""Layout of the DAG: a row for each sub-pipeline, tasks left to right, rows top to bottom.

Rows follow a topological order and so do the columns of a row, hence every edge goes forward:
down, or to the right. A few gates that follow a sub-pipeline share its row.
"""

from __future__ import annotations

from dataclasses import dataclass

from longstride.report.tree import Tree, siblings_edges

COLUMNS = 6
NODE_WIDTH, NODE_HEIGHT = 144, 38
GAP_X, GAP_Y = 18, 8
GUTTER, LABEL_WIDTH = 34, 124
ROW_PADDING, ROW_GAP = 8, 10


@dataclass(frozen=True)
class Node:
    """One task, or an empty sub-pipeline, in pixels from the top left."""

    path: str
    row: int
    column: int
    x: float
    y: float
    gate: bool


@dataclass(frozen=True)
class Row:
    """A sub-pipeline, or a run of tasks between two; `inside` columns belong to it."""

    label: str
    group: str | None
    y: float
    height: float
    inside: int
    columns: int


@dataclass(frozen=True)
class Layout:
    """Boxes and edges. `edges` join nodes of one row, `links` join rows."""

    nodes: dict[str, Node]
    rows: list[Row]
    edges: list[tuple[str, str]]
    links: list[tuple[int, int]]
    width: float
    height: float


@dataclass
class _Draft:
    group: str | None
    columns: list[list[str]]
    inside: int

    @property
    def members(self) -> list[str]:
        return [path for column in self.columns for path in column]


def lay_out(tree: Tree) -> Layout:
    """Place every leaf of the tree."""
    lifted = siblings_edges(tree)
    drafts: list[_Draft] = []
    _emit(tree, None, lifted, drafts)
    nodes, rows = _place(tree, drafts)
    edges, links = _connect(tree, lifted, nodes, rows)
    width = GUTTER + LABEL_WIDTH + COLUMNS * NODE_WIDTH + (COLUMNS - 1) * GAP_X + ROW_PADDING
    height = rows[-1].y + rows[-1].height if rows else 0.0
    return Layout(nodes, rows, edges, links, width, height)


def _emit(tree: Tree, group: str | None, lifted: dict[str, set[str]], drafts: list[_Draft]) -> None:
    """Append the rows of a sub-pipeline: runs of tasks, and sub-pipelines in between."""
    segment: list[str] = []
    for child in tree.children.get(group, []):
        if tree.is_leaf(child):
            segment.append(child)
            continue
        _flush(tree, group, segment, lifted, drafts)
        segment = []
        _emit(tree, child, lifted, drafts)
    _flush(tree, group, segment, lifted, drafts)


def _flush(
    tree: Tree,
    group: str | None,
    segment: list[str],
    lifted: dict[str, set[str]],
    drafts: list[_Draft],
) -> None:
    columns = _columns(segment, lifted)
    gates = bool(segment) and all(path in tree.gates for path in segment)
    if gates and drafts and len(drafts[-1].columns) + len(columns) <= COLUMNS:
        drafts[-1].columns += columns
        return
    for start in range(0, len(columns), COLUMNS):
        part = columns[start : start + COLUMNS]
        drafts.append(_Draft(group, part, len(part)))


def _columns(segment: list[str], lifted: dict[str, set[str]]) -> list[list[str]]:
    """Longest-path layers; `segment` is in topological order."""
    depth: dict[str, int] = {}
    for path in segment:
        depth[path] = 1 + max((depth[s] for s in lifted[path] if s in depth), default=-1)
    columns: list[list[str]] = [[] for _ in range(1 + max(depth.values(), default=-1))]
    for path in segment:
        columns[depth[path]].append(path)
    return columns


def _place(tree: Tree, drafts: list[_Draft]) -> tuple[dict[str, Node], list[Row]]:
    nodes: dict[str, Node] = {}
    rows: list[Row] = []
    y = 0.0
    for index, draft in enumerate(drafts):
        tallest = max(len(column) for column in draft.columns)
        height = tallest * NODE_HEIGHT + (tallest - 1) * GAP_Y + 2 * ROW_PADDING
        for number, column in enumerate(draft.columns):
            used = len(column) * NODE_HEIGHT + (len(column) - 1) * GAP_Y
            top = y + (height - used) / 2
            for place, path in enumerate(column):
                nodes[path] = Node(
                    path, index, number,
                    GUTTER + LABEL_WIDTH + number * (NODE_WIDTH + GAP_X),
                    top + place * (NODE_HEIGHT + GAP_Y), path in tree.gates,
                )  # fmt: skip
        label = tree.label(draft.group) if draft.group is not None else ""
        rows.append(Row(label, draft.group, y, height, draft.inside, len(draft.columns)))
        y += height + ROW_GAP
    return nodes, rows


def _connect(
    tree: Tree, lifted: dict[str, set[str]], nodes: dict[str, Node], rows: list[Row]
) -> tuple[list[tuple[str, str]], list[tuple[int, int]]]:
    leaves = {path: _leaves(tree, path) for path in tree.tasks}
    edges: dict[int, set[tuple[int, int]]] = {}
    between: set[tuple[int, int]] = set()
    order = {path: index for index, path in enumerate(nodes)}
    names = list(nodes)
    for target, sources in lifted.items():
        for source in sources:
            ends = [nodes[p] for p in leaves[source]]
            starts = [nodes[p] for p in leaves[target]]
            last = max(n.row for n in ends)
            first = min(n.row for n in starts)
            if last < first:
                between.add((last, first))
            for a in ends:
                for b in starts:
                    if a.row == b.row and a.column < b.column:
                        edges.setdefault(a.row, set()).add((order[a.path], order[b.path]))
    within = [(names[a], names[b]) for row in sorted(edges) for a, b in sorted(reduce(edges[row]))]
    return within, sorted(reduce(between))


def _leaves(tree: Tree, path: str) -> list[str]:
    return [path] if tree.is_leaf(path) else list(tree.leaves(path))


def reduce(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    """Transitive reduction of edges that all go from a smaller to a greater number."""
    after: dict[int, set[int]] = {}
    for a, b in edges:
        after.setdefault(a, set()).add(b)
    reach: dict[int, set[int]] = {}
    kept: set[tuple[int, int]] = set()
    for a in sorted({n for edge in edges for n in edge}, reverse=True):
        seen: set[int] = set()
        for b in sorted(after.get(a, ())):
            if b not in seen:
                kept.add((a, b))
            seen |= {b} | reach.get(b, set())
        reach[a] = seen
    return kept
