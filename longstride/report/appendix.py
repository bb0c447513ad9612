"""Reference matter: every task, every artifact, the resolved recipe, versions and digests."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from longstride.report import figures, states
from longstride.report.anchors import Anchors
from longstride.report.markup import Safe, join, tag
from longstride.report.record import CollectedRun
from longstride.report.tree import Tree
from schemas.base import canonical_json
from schemas.run import TaskRecord


def tasks(record: CollectedRun, tree: Tree, anchors: Anchors) -> Safe:
    """One row a task."""
    names = (("", "mark"), ("Task", ""), ("State", ""), ("Started", ""), ("Took", "num"),
             ("CPU", "num"), ("Peak memory", "num"), ("Attempts", "num"),
             ("Cache", ""))  # fmt: skip
    head = tag("tr", *(tag("th", n, class_=c, scope="col") for n, c in names))
    rows = [_task_row(task, record, anchors) for task in tree.tasks.values()]
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="tasks")
    failed = any(states.tone(t.state) == "bad" for t in tree.tasks.values())
    summary = tag("summary", f"All {figures.plural(len(rows), 'task')}")
    return tag("details", summary, tag("div", table, class_="scroll"), class_="more", open=failed)


def _task_row(task: TaskRecord, record: CollectedRun, anchors: Anchors) -> Safe:
    took = None
    if task.started_at is not None and task.finished_at is not None:
        took = task.finished_at - task.started_at
    log = record.attempt_log.get(task.path, [])
    logs = [tag("div", f"attempt {a.number}: ", a.error or "no error", " ", tag("code", a.log))
            for a in log if a.log and (a.error or task.error)]  # fmt: skip
    cache = record.cache_reasons.get(task.path) or ("hit" if task.cache_hit else figures.MISSING)
    kind = "" if task.kind == "container" else f" ({task.kind})"
    return tag(
        "tr",
        tag("td", states.icon(states.tone(task.state)), class_="mark"),
        tag("td", tag("span", task.display_name, kind, class_="check-name"),
            tag("span", task.path, class_="check-what mono"),
            tag("pre", task.error, class_="error") if task.error else None,
            *logs),
        tag("td", states.word(task.state)),
        tag("td", figures.moment(task.started_at)[11:-4] or figures.MISSING,
            title=figures.moment(task.started_at)),
        tag("td", figures.duration(took), class_="num"),
        tag("td", figures.duration(task.cpu_seconds), class_="num"),
        tag("td", figures.memory(task.peak_memory_bytes), class_="num"),
        tag("td", str(task.attempts), class_="num"),
        tag("td", cache, class_="origin"),
        id=anchors.task[task.path],
    )  # fmt: skip


def artifacts(tree: Tree) -> Safe:
    """Where the outputs lie."""
    rows = [
        tag("tr", tag("td", path), tag("td", name), tag("td", tag("code", uri)))
        for path, task in tree.tasks.items()
        for name, uri in task.artifacts.items()
    ]
    if not rows:
        return tag("p", "No artifact is known.", class_="empty")
    head = tag("tr", *(tag("th", n, scope="col") for n in ("Task", "Artifact", "URI")))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="artifacts")
    return tag("details", tag("summary", figures.plural(len(rows), "artifact")),
               tag("div", table, class_="scroll"), class_="more")  # fmt: skip


def recipe(record: CollectedRun) -> Safe:
    """The recipe by section, with the origin of a value where the recipe gives one."""
    if not record.recipe:
        return tag("p", "The resolved recipe was not found.", class_="empty")
    provenance = record.recipe.get("provenance")
    origins = provenance if isinstance(provenance, dict) else {}
    top: list[tuple[str, Any]] = []
    parts = []
    for key, value in record.recipe.items():
        if key == "provenance":
            continue
        if isinstance(value, dict | list) and value:
            rows = list(flatten(value, key))
            count = tag("span", figures.plural(len(rows), "value"), class_="gate-count")
            summary = tag("summary", tag("span", key, class_="gate-stage"), count)
            parts.append(tag("details", summary, _values(rows, origins, key), class_="more"))
        else:
            top.append((key, value))
    raw = tag("details", tag("summary", "As JSON"),
              tag("pre", _pretty(record.recipe), class_="raw"), class_="more")  # fmt: skip
    return join(_values(top, origins, ""), *parts, raw)


def _pretty(value: Any, indent: str = "") -> str:
    """JSON with short lists and objects kept on one line."""
    line = canonical_json(value)
    if len(line) + len(indent) < 88 or not isinstance(value, dict | list) or not value:
        return line
    inner = indent + "  "
    if isinstance(value, list):
        return "[\n" + ",\n".join(inner + _pretty(v, inner) for v in value) + f"\n{indent}]"
    entries = [f"{inner}{canonical_json(k)}: {_pretty(v, inner)}" for k, v in value.items()]
    return "{\n" + ",\n".join(entries) + f"\n{indent}}}"


def flatten(value: Any, prefix: str) -> Iterator[tuple[str, Any]]:
    """Dotted fields with their values; a list of plain values stays one value."""
    if isinstance(value, dict) and value:
        for key, inner in value.items():
            yield from flatten(inner, f"{prefix}.{key}")
    elif isinstance(value, list) and any(isinstance(v, dict | list) for v in value):
        for index, inner in enumerate(value):
            yield from flatten(inner, f"{prefix}.{index}")
    else:
        yield prefix, value


def _values(rows: list[tuple[str, Any]], origins: Mapping[str, Any], prefix: str) -> Safe | None:
    if not rows:
        return None
    body = []
    for name, value in rows:
        short = name.removeprefix(f"{prefix}.") if prefix else name
        body.append(tag("tr", tag("th", short, scope="row", title=name),
                        tag("td", _plain(value), class_="mono"),
                        tag("td", str(origins.get(name, "")), class_="origin")))  # fmt: skip
    return tag("table", tag("tbody", *body), class_="values")


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value if value else '""'
    return canonical_json(value)


def provenance(record: CollectedRun) -> Safe:
    """Digests, versions, and the machine."""
    digests = [("run", record.run_id), ("recipe digest", record.recipe_digest),
               ("code digest", record.code_digest)]  # fmt: skip
    columns = [("Digests", digests), ("Machine", sorted(record.machine.items())),
               ("Versions", sorted(record.versions.items()))]  # fmt: skip
    return tag("div", *(_column(title, rows) for title, rows in columns), class_="columns")


def _column(title: str, rows: list[tuple[str, str]]) -> Safe:
    body = [
        tag("tr", tag("th", name, scope="row"), tag("td", value or figures.MISSING, class_="mono"))
        for name, value in rows
    ]
    content = tag("table", tag("tbody", *body), class_="values") if body else tag(
        "p", "Not recorded.", class_="empty")  # fmt: skip
    return tag("div", tag("h3", title), content)
