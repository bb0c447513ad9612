"""The run as a tree: one node per task, sub-pipeline, loop and loop iteration."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from longstride.runner.ir import Component, PipelineIR, TaskSpec
from longstride.runner.state import FINAL_STATES, PENDING, TaskKind, TaskState
from longstride.runner.values import JsonObject, Values


@dataclass
class Node:
    """One place of the run. `inputs` are the declared ones, `scope` has undeclared ones too."""

    path: str
    spec: TaskSpec
    component: Component
    kind: TaskKind
    parent: Node | None
    depends: list[Node] = field(default_factory=list)
    children: dict[str, Node] = field(default_factory=dict)
    state: str = PENDING
    inputs: Values = field(default_factory=Values)
    scope: JsonObject = field(default_factory=dict)
    outputs: Values = field(default_factory=Values)
    absent_outputs: list[str] = field(default_factory=list)
    error: str | None = None
    failed_path: str = ""
    executed: bool = False
    recorded: TaskState | None = None
    recorded_state: str = PENDING
    items: list[Any] = field(default_factory=list)
    failures: int = 0
    attempts: int = 0

    @property
    def final(self) -> bool:
        """True when nothing more will happen here."""
        return self.state in FINAL_STATES

    @property
    def failure(self) -> str:
        """The failing task and its error, for people."""
        place, error = self.failed_path or self.path, self.error or self.state
        return error if error.startswith(place) else f"{place}: {error}"

    @property
    def is_iteration(self) -> bool:
        """True for one pass through a loop's body."""
        return self.parent is not None and self.parent.kind == "loop"

    def leaves(self) -> list[Node]:
        """Tasks below this node that run something, in order."""
        if self.kind in ("container", "importer"):
            return [self]
        return [leaf for child in self.children.values() for leaf in child.leaves()]

    @property
    def static_path(self) -> str:
        """The path without loop indices: what stays the same from run to run."""
        return "/".join(part.split("#")[0] for part in self.path.split("/"))


def _kind(ir: PipelineIR, spec: TaskSpec, component: Component) -> TaskKind:
    if component.dag is not None:
        return "loop" if spec.iterator is not None else "dag"
    executor = ir.executors[component.executor or ""]
    return "importer" if executor.kind == "importer" else "container"


def root_node(ir: PipelineIR) -> Node:
    """The root of the tree, with every task that is known before anything runs."""
    from longstride.runner.ir import RetryPolicy

    spec = TaskSpec("root", ir.name, "root", (), {}, {}, "", "", None, RetryPolicy(), False, "")
    root = Node("root", spec, ir.root, "dag", None)
    grow(ir, root)
    return root


def grow(ir: PipelineIR, node: Node) -> None:
    """Add the children of a DAG node, and theirs; loops get theirs when their items are known."""
    if node.component.dag is None or node.kind == "loop":
        return
    for name, spec in node.component.dag.tasks.items():
        component = ir.component(spec.component)
        kind = _kind(ir, spec, component)
        node.children[name] = Node(f"{node.path}/{name}", spec, component, kind, node)
    for child in node.children.values():
        child.depends = [node.children[name] for name in child.spec.depends_on]
        grow(ir, child)


def iteration_node(ir: PipelineIR, loop: Node, index: int) -> Node:
    """One pass through the body of a loop."""
    node = Node(f"{loop.path}#{index}", loop.spec, loop.component, "dag", loop)
    grow(ir, node)
    loop.children[str(index)] = node
    return node
