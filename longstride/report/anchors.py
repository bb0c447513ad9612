"""Fragment identifiers: unique, stable, and never made of foreign text."""

from __future__ import annotations

from dataclasses import dataclass

from longstride.report.record import CollectedRun
from longstride.report.tree import Tree, match_verdicts


@dataclass(frozen=True)
class Anchors:
    """Where each task and verdict is described on the page."""

    task: dict[str, str]
    verdict_of: dict[str, int]
    task_of: list[str | None]

    def best(self, path: str) -> str:
        """A gate leads to its verdict, any other task to its row in the list of tasks."""
        if path in self.verdict_of:
            return verdict_id(self.verdict_of[path])
        return self.task[path]


def verdict_id(index: int) -> str:
    """Identifier of a verdict's section."""
    return f"verdict-{index + 1}"


def make(record: CollectedRun, tree: Tree) -> Anchors:
    """Number tasks and match verdicts to their gates."""
    task_of = match_verdicts(tree, record.verdicts, record.verdict_tasks)
    return Anchors(
        task={path: f"task-{number}" for number, path in enumerate(tree.tasks, start=1)},
        verdict_of={path: i for i, path in enumerate(task_of) if path is not None},
        task_of=task_of,
    )
