"""Tasks as a tree of sub-pipelines, tolerant of records that are incomplete or inconsistent."""

from __future__ import annotations

import heapq
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from schemas.run import TaskRecord
from schemas.verdict import Verdict

_WRAPPER = re.compile(r"(root|exit-handler(-\d+)?|condition-branches(-\d+)?|condition(-\d+)?)\Z")
_GATE = re.compile(r"(^|[-_ ])(gate|gates|e[1-8]|quality|expansion|verdict)([-_ ]|$)", re.I)
_GATE_OUTPUTS = frozenset({"verdict", "gate_verdict"})


@dataclass(frozen=True)
class Tree:
    """Tasks by path, with parents, children in topological order, and edges among siblings."""

    tasks: dict[str, TaskRecord]
    parent: dict[str, str | None]
    children: dict[str | None, list[str]]
    edges: dict[str, set[str]] = field(default_factory=dict)
    """Direct upstream tasks of every task, as recorded."""
    gates: frozenset[str] = frozenset()
    """Tasks that are gates."""

    def is_leaf(self, path: str) -> bool:
        """Whether nothing runs inside the task."""
        return not self.children.get(path)

    def ancestors(self, path: str) -> list[str]:
        """The task, its sub-pipeline, and so on up to the run."""
        chain = [path]
        while (above := self.parent[chain[-1]]) is not None:
            chain.append(above)
        return chain

    def leaves(self, path: str | None = None) -> Iterator[str]:
        """Tasks that do the work, in topological order."""
        for child in self.children.get(path, []):
            if self.is_leaf(child):
                yield child
            else:
                yield from self.leaves(child)

    def stage(self, path: str) -> str:
        """Names of the enclosing sub-pipelines without the wrappers that the compiler adds."""
        above = self.parent[path]
        return "" if above is None else self.label(above)

    def label(self, path: str) -> str:
        """Name of a sub-pipeline with the ones around it."""
        names = [
            self.tasks[p].display_name or p.rsplit("/", 1)[-1]
            for p in reversed(self.ancestors(path))
            if not _WRAPPER.match(p.rsplit("/", 1)[-1])
        ]
        return " › ".join(names)  # noqa: RUF001


def build(records: list[TaskRecord], gates: Iterable[str] = ()) -> Tree:
    """Index tasks; a later record of the same path replaces an earlier one.

    Args:
        records: Tasks in any order.
        gates: Paths known to be gates besides those that look like one.
    """
    tasks = {task.path: task for task in records}
    parent = {path: _parent(path, tasks) for path in tasks}
    edges = {
        path: {d for d in (_resolve(name, path, tasks) for name in task.depends_on) if d}
        for path, task in tasks.items()
    }
    grouped: dict[str | None, list[str]] = {}
    for path in tasks:
        grouped.setdefault(parent[path], []).append(path)
    named = {path for path, task in tasks.items() if is_gate(task)}
    tree = Tree(tasks, parent, grouped, edges, frozenset(named.union(gates)))
    lifted = siblings_edges(tree)
    for above, members in grouped.items():
        grouped[above] = topological(members, lifted)
    return tree


def _parent(path: str, tasks: dict[str, TaskRecord]) -> str | None:
    """The recorded parent unless it is unknown or part of a cycle."""
    first = tasks[path].parent
    seen, at = {path}, first
    while at is not None and at in tasks:
        if at in seen:
            return None
        seen.add(at)
        at = tasks[at].parent
    return first if first in tasks else None


def _resolve(name: str, path: str, tasks: dict[str, TaskRecord]) -> str | None:
    """A dependency by path, or by name beside the task."""
    sibling = f"{path.rpartition('/')[0]}/{name}"
    found = name if name in tasks else sibling if sibling in tasks else None
    return None if found == path else found


def siblings_edges(tree: Tree) -> dict[str, set[str]]:
    """Edges lifted to where both ends have the same parent: target -> sources."""
    lifted: dict[str, set[str]] = {path: set() for path in tree.tasks}
    for target, sources in tree.edges.items():
        chain = tree.ancestors(target)
        for source in sources:
            pair = _fork(chain, tree.ancestors(source))
            if pair:
                lifted[pair[0]].add(pair[1])
    return lifted


def _fork(target: list[str], source: list[str]) -> tuple[str, str] | None:
    """The members of two ancestor chains just below their common ancestor."""
    if source[0] in target or target[0] in source:
        return None
    while len(target) > 1 and len(source) > 1 and target[-1] == source[-1]:
        target, source = target[:-1], source[:-1]
    return (target[-1], source[-1]) if target[-1] != source[-1] else None


def topological(members: list[str], upstream: dict[str, set[str]]) -> list[str]:
    """Kahn's order, ties as given; members of a cycle come last as given."""
    rank = {path: index for index, path in enumerate(members)}
    waiting = {path: {s for s in upstream[path] if s in rank} for path in members}
    downstream: dict[str, list[str]] = {}
    for path, sources in waiting.items():
        for source in sources:
            downstream.setdefault(source, []).append(path)
    ready = [rank[path] for path, sources in waiting.items() if not sources]
    heapq.heapify(ready)
    order: list[str] = []
    while ready:
        path = members[heapq.heappop(ready)]
        order.append(path)
        for follower in downstream.get(path, []):
            waiting[follower].discard(path)
            if not waiting[follower]:
                heapq.heappush(ready, rank[follower])
    done = set(order)
    return order + [path for path in members if path not in done]


def is_gate(task: TaskRecord) -> bool:
    """A gate makes a verdict, or is called one."""
    return bool(_GATE_OUTPUTS & set(task.artifacts)) or any(
        _GATE.search(name) for name in (task.display_name, task.path.rsplit("/", 1)[-1])
    )


def match_verdicts(tree: Tree, verdicts: list[Verdict], known: list[str]) -> list[str | None]:
    """The gate task of each verdict: as collected, or the one whose edge and stage agree."""
    gates = [path for path in tree.leaves() if path in tree.gates]
    found: list[str | None] = []
    for index, verdict in enumerate(verdicts):
        path: str | None = known[index] if index < len(known) else None
        if path not in tree.tasks:
            path = next((g for g in gates if _agrees(g, verdict) and g not in found), None)
        found.append(path)
    return found


def _agrees(path: str, verdict: Verdict) -> bool:
    words = re.split(r"[/_ ]", path.lower())
    tail = words[-1]
    return verdict.edge.lower() in re.split(r"[-.]", tail) and (
        verdict.stage.lower() in words or verdict.stage.lower() in tail
    )
