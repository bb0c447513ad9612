from __future__ import annotations

from itertools import combinations

from example_run import example_run
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.report.dag import COLUMNS, NODE_HEIGHT, NODE_WIDTH, lay_out, reduce
from longstride.report.tree import build
from schemas.run import TaskRecord


def _task(path: str, parent: str | None, after: list[str]) -> TaskRecord:
    return TaskRecord(path=path, display_name=path.rsplit("/", 1)[-1], parent=parent,
                      kind="container", state="PENDING", depends_on=after)  # fmt: skip


@st.composite
def dags(draw) -> list[TaskRecord]:
    """Nested sub-pipelines whose tasks depend on earlier siblings, in any order of listing."""
    tasks: list[TaskRecord] = []

    def fill(parent: str | None, depth: int) -> None:
        names: list[str] = []
        for number in range(draw(st.integers(1, 6))):
            suffix = draw(st.sampled_from(["task", "gate-e7"]))
            path = f"{parent or 'root'}/{number}-{suffix}"
            after = draw(st.lists(st.sampled_from(names), max_size=3)) if names else []
            tasks.append(_task(path, parent, after))
            names.append(path)
            if depth and draw(st.booleans()):
                fill(path, depth - 1)

    fill(None, 2)
    return draw(st.permutations(tasks))


@settings(max_examples=200, deadline=None, derandomize=True)
@given(dags())
def test_boxes_do_not_overlap_and_every_edge_goes_forward(tasks):
    tree = build(tasks)
    layout = lay_out(tree)
    assert set(layout.nodes) == set(tree.leaves())
    for a, b in combinations(layout.nodes.values(), 2):
        assert abs(a.x - b.x) >= NODE_WIDTH or abs(a.y - b.y) >= NODE_HEIGHT
    for a, b in layout.edges:
        assert layout.nodes[a].x + NODE_WIDTH < layout.nodes[b].x
        assert layout.nodes[a].row == layout.nodes[b].row
    for above, below in layout.links:
        assert layout.rows[above].y + layout.rows[above].height < layout.rows[below].y


@settings(max_examples=100, deadline=None, derandomize=True)
@given(dags())
def test_a_task_is_never_drawn_before_one_it_waits_for(tasks):
    tree = build(tasks)
    place = {p: (n.row, n.column) for p, n in lay_out(tree).nodes.items()}
    for target, sources in tree.edges.items():
        for source in sources:
            before = [place[p] for p in (tree.leaves(source) if not tree.is_leaf(source)
                                         else [source])]  # fmt: skip
            after = [place[p] for p in (tree.leaves(target) if not tree.is_leaf(target)
                                        else [target])]  # fmt: skip
            assert max(before) < min(after)


def test_boxes_stay_inside_their_row_and_the_figure():
    layout = lay_out(build(example_run().tasks))
    assert len(layout.nodes) == 65
    for node in layout.nodes.values():
        row = layout.rows[node.row]
        assert row.y <= node.y and node.y + NODE_HEIGHT <= row.y + row.height
        assert node.column < COLUMNS and node.x + NODE_WIDTH <= layout.width


def test_a_gate_between_two_stages_shares_the_row_of_the_first():
    tasks = [
        _task("root/a", None, []), _task("root/a/train", "root/a", []),
        _task("root/gate-e7", None, ["root/a"]),
        _task("root/b", None, ["gate-e7"]), _task("root/b/train", "root/b", []),
    ]  # fmt: skip
    layout = lay_out(build(tasks))
    assert layout.nodes["root/gate-e7"].row == layout.nodes["root/a/train"].row == 0
    assert layout.edges == [("root/a/train", "root/gate-e7")]
    assert layout.links == [(0, 1)]


def test_cycles_and_unknown_names_do_not_stop_the_layout():
    tasks = [_task("a", "a", ["b", "nobody"]), _task("b", "nowhere", ["a"])]
    assert set(lay_out(build(tasks)).nodes) == {"a", "b"}


@given(st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda e: e[0] < e[1])))
def test_the_reduction_keeps_reachability_and_has_no_shortcut(edges):
    kept = reduce(edges)
    assert _closure(kept) == _closure(edges)
    for edge in kept:
        assert edge not in _closure(kept - {edge})


def _closure(edges: set[tuple[int, int]]) -> set[tuple[int, int]]:
    closure = set(edges)
    while more := {(a, d) for a, b in closure for c, d in closure if b == c} - closure:
        closure |= more
    return closure
