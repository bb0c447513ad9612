"""The top of the page: what ran, how it ended, and the one result that matters."""

from __future__ import annotations

from collections import Counter

from longstride.report import benchmark, figures, gates, states
from longstride.report.anchors import Anchors, verdict_id
from longstride.report.markup import Safe, join, tag
from longstride.report.pairing import compare
from longstride.report.record import CollectedRun
from longstride.report.scales import Scale
from longstride.report.tree import Tree
from schemas.rows import Interval
from schemas.run import TaskStateName


def draw(record: CollectedRun, tree: Tree, anchors: Anchors) -> Safe:
    """Name, state, facts, headline, and what went wrong if anything did."""
    title = tag(
        "div",
        tag("div", tag("p", "Longstride run report", class_="eyebrow"), tag("h1", record.name),
            tag("p", tag("code", record.run_id), class_="run-id")),
        states.pill(states.tone(record.state), states.word(record.state), "big"),
        class_="title",
    )  # fmt: skip
    return tag("header", title, _problems(record, tree, anchors), _headline(record),
               _facts(record, tree), _notes(record.notes), id="top")  # fmt: skip


def _facts(record: CollectedRun, tree: Tree) -> Safe:
    leaves = [tree.tasks[p] for p in tree.leaves()]
    counts = Counter(t.state for t in leaves)
    cached = sum(t.cache_hit for t in leaves)
    retried = sum(t.attempts > 1 for t in leaves)
    shown: tuple[TaskStateName, ...] = ("FAILED", "RUNNING", "PENDING", "CANCELED", "SKIPPED")
    extra = [f"{counts[name]} {states.word(name).lower()}" for name in shown if counts[name]]
    extra += [f"{n} {word}" for n, word in ((cached, "cached"), (retried, "retried")) if n]
    done = counts["SUCCEEDED"] + counts["SKIPPED"]
    verdicts = Counter(gates.outcome(v)[1] for v in record.verdicts)
    cpu = [t.cpu_seconds for t in leaves if t.cpu_seconds is not None]
    peak = [t.peak_memory_bytes for t in leaves if t.peak_memory_bytes is not None]
    took = None
    if record.started_at is not None and record.finished_at is not None:
        took = record.finished_at - record.started_at
    since = figures.moment(record.started_at)
    until = figures.moment(record.finished_at)
    cells = [
        ("Started", since[:10], f"{since[11:19]} to {until[11:] or 'now'}" if since[11:] else ""),
        ("Duration", figures.duration(took), f"{figures.duration(sum(cpu))} of CPU" if cpu else ""),
        ("Tasks", f"{done} of {len(leaves)}", ", ".join(extra) or "all done"),
        ("Gates", f"{sum(v.passed for v in record.verdicts)} of {len(record.verdicts)} passed",
         ", ".join(f"{n} {w.lower()}" for w, n in verdicts.items() if w != "Passed")
         or ("no warning" if record.verdicts else "no verdict yet")),
        ("Peak memory of a task", figures.memory(max(peak)) if peak else figures.MISSING,
         record.machine.get("memory", "")),
        ("Recipe", figures.shorten(record.recipe_digest.removeprefix("sha256:"), 13)
         or figures.MISSING,
         f"version {record.recipe['version']}" if "version" in record.recipe else ""),
    ]  # fmt: skip
    return tag("dl", *(
        tag("div", tag("dt", name), tag("dd", value), tag("dd", note, class_="quiet"))
        for name, value, note in cells
    ), class_="facts")  # fmt: skip


def _headline(record: CollectedRun) -> Safe | None:
    pair = benchmark.ends(record)
    if pair is None:
        return None
    before, after = pair
    comparison = compare(record.evaluations)
    gain = comparison.gains.get("") if comparison else None
    arrow = tag("span", "→", class_="arrow")
    parts = [
        tag("div", tag("p", f"Benchmark, avg@{after.samples_per_problem}", class_="eyebrow"),
            tag("div", _figure(before.average, before.label), arrow,
                _figure(after.average, after.label), class_="pair")),
    ]  # fmt: skip
    if gain is not None:
        tone = benchmark.gain_tone(gain)
        sense = {"up": "above zero with 95% confidence", "down": "below zero with 95% confidence",
                 "flat": "not distinguishable from zero"}[tone]  # fmt: skip
        parts.append(tag(
            "div",
            tag("p", "Paired gain", class_="eyebrow"),
            tag("p", figures.value(gain.mean, figures.points(gain.mean)),
                tag("span", " pp", class_="unit"), class_=f"headline-number {tone}"),
            _interval(gain, signed=True),
            _mini(gain, tone),
            tag("p", sense, class_="quiet"),
            class_="gain",
        ))  # fmt: skip
    elif comparison is not None:
        parts.append(tag("div", tag("p", "Paired gain", class_="eyebrow"),
                         tag("p", comparison.reason, class_="quiet"), class_="gain"))  # fmt: skip
    return tag("a", *parts, class_="headline", href="#benchmark")


def _figure(interval: Interval, label: str) -> Safe:
    return tag(
        "div",
        tag("p", figures.value(interval.mean, figures.fixed(100 * interval.mean, 1)),
            tag("span", "\u2009%", class_="unit"), class_="headline-number"),
        _interval(interval, signed=False),
        tag("p", label, class_="quiet"),
    )  # fmt: skip


def _interval(interval: Interval, *, signed: bool) -> Safe:
    def show(v: float) -> str:
        return figures.points(v) if signed else figures.fixed(100 * v, 1)

    return tag("p", "95% [", figures.value(interval.low, show(interval.low)), ", ",
               figures.value(interval.high, show(interval.high)), "]", class_="ci")  # fmt: skip


def _mini(gain: Interval, tone: str) -> Safe:
    reach = max(abs(gain.low), abs(gain.high), 1e-6) * 1.1
    scale = Scale(-reach, reach, 4, 156)
    low, high, mean = scale(gain.low), scale(gain.high), scale(gain.mean)
    return tag(
        "svg",
        tag("line", x1=80, x2=80, y1=1, y2=17, class_="zero"),
        tag("g", tag("line", x1=low, x2=high, y1=9, y2=9), tag("circle", cx=mean, cy=9, r=4.5),
            class_=f"whisker {tone}"),
        viewBox="0 0 160 18",
        class_="mini",
        aria_hidden="true",
    )  # fmt: skip


def _problems(record: CollectedRun, tree: Tree, anchors: Anchors) -> Safe | None:
    """Blocked gates first, for they explain the failed tasks; then other failures."""
    items: list[Safe] = []
    explained: set[str | None] = set()
    for index, verdict in enumerate(record.verdicts):
        if verdict.passed:
            continue
        explained.add(anchors.task_of[index])
        checks = [
            tag("li", tag("b", c.name), ": observed ", figures.value(c.observed),
                ", allowed ", tag("code", c.threshold))
            for c in verdict.blocked_by
        ]  # fmt: skip
        items.append(tag(
            "div",
            tag("p", "Gate ", tag("b", f"{verdict.edge} {verdict.stage}"), " blocked the run ",
                tag("a", "show all checks", href=f"#{verdict_id(index)}")),
            tag("ul", *checks),
            _failure(tree, anchors, anchors.task_of[index]),
        ))  # fmt: skip
    for path in tree.leaves():
        task = tree.tasks[path]
        if states.tone(task.state) == "bad" and path not in explained:
            items.append(tag("div", _failure(tree, anchors, path)))
    if record.error and not items:
        items.append(tag("pre", record.error, class_="error"))
    return tag("div", *items[:8], class_="problems") if items else None


def _failure(tree: Tree, anchors: Anchors, path: str | None) -> Safe | None:
    if path is None or states.tone(tree.tasks[path].state) != "bad":
        return None
    error = tree.tasks[path].error or "No error was recorded; see the log of the task."
    name = tag("a", tag("b", path), href=f"#{anchors.task[path]}")
    return join(tag("p", "Task ", name, " failed"), tag("pre", error, class_="error"))


def _notes(notes: list[str]) -> Safe | None:
    if not notes:
        return None
    count = figures.plural(len(notes), "part")
    summary = tag("summary", states.icon("warn"), f"{count} of this report could not be filled in")
    return tag("details", summary, tag("ul", *(tag("li", n) for n in notes)), class_="notes",
               open=True)  # fmt: skip
