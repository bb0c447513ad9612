"""What each stage achieved in a line or two, for the DAG."""

from __future__ import annotations

from longstride.report import figures
from longstride.report.record import CollectedRun
from longstride.report.tree import Tree
from schemas.run import TaskMetrics


def outcomes(record: CollectedRun, tree: Tree) -> dict[str, list[str]]:
    """Lines by path of the sub-pipeline."""
    said: dict[str, list[str]] = {}
    entries = list(record.ladder.history) if record.ladder else []
    position = 0
    for metrics in record.metrics:
        group = tree.parent.get(metrics.task)
        if group is None:
            continue
        lines = said.setdefault(group, [])
        if change := _change(metrics, "train/loss"):
            lines.append(f"loss {change}")
        if change := _change(metrics, "rl/reward/mean"):
            lines.append(f"reward {change}")
        if any(p.name.startswith("rl/") for p in metrics.points):
            if position < len(entries):
                entry = entries[position]
                lines.append(f"window {entry.window:,}, {entry.decision.replace('_', ' ')}")
            position += 1
    return said


def _change(metrics: TaskMetrics, name: str) -> str:
    """First and last value of a series."""
    values = [p.value for p in metrics.points if p.name == name]
    if not values:
        return ""
    return f"{figures.number(values[0], 3)} → {figures.number(values[-1], 3)}"
