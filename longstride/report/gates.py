"""Verdicts as tables: every check, what was observed, what was allowed, and who broke it."""

from __future__ import annotations

from collections.abc import Iterable

from longstride.report import figures, states
from longstride.report.anchors import Anchors, verdict_id
from longstride.report.markup import Safe, join, tag
from schemas.run import RunRecord
from schemas.verdict import EDGE_TITLES, Check, Verdict

_RANK = {"block": 0, "warn": 1, "info": 2}


def outcome(verdict: Verdict) -> tuple[str, str]:
    """Symbol and word of a verdict."""
    if not verdict.passed:
        return "bad", "Blocked"
    if verdict.override is not None:
        return "warn", "Overridden"
    if warnings(verdict):
        return "warn", "Passed with warnings"
    return "ok", "Passed"


def warnings(verdict: Verdict) -> list[Check]:
    """Failed checks that do not stop the run."""
    return [c for c in verdict.checks if not c.passed and c.severity != "block"]


def draw(record: RunRecord, anchors: Anchors) -> Safe:
    """One foldable entry a gate: blocked ones open, passed ones folded."""
    if not record.verdicts:
        return tag("p", "No gate has given a verdict yet.", class_="empty")
    return join(*(_entry(v, i, anchors) for i, v in enumerate(record.verdicts)))


def _entry(verdict: Verdict, index: int, anchors: Anchors) -> Safe:
    tone, text = outcome(verdict)
    passed = sum(c.passed for c in verdict.checks)
    path = anchors.task_of[index]
    summary = tag(
        "summary",
        tag("span", verdict.edge, class_="edge"),
        tag("span", verdict.stage, class_="gate-stage"),
        tag("span", _arrows(EDGE_TITLES[verdict.edge]), class_="gate-title"),
        tag("span", f"{passed} of {len(verdict.checks)} checks", class_="gate-count"),
        tag("span", f"{verdict.rows:,} rows", class_="gate-count"),
        states.pill(tone, text),
    )
    body = [
        _override(verdict),
        tag("p", verdict.note, class_="note") if verdict.note else None,
        check_table(verdict.checks),
        tag(
            "p",
            "suite ", tag("code", verdict.suite_digest or figures.MISSING),
            "  subject ", tag("code", verdict.subject_digest or figures.MISSING),
            join("  task ", tag("a", path, href=f"#{anchors.task[path]}")) if path else None,
            class_="fine",
        ),
    ]  # fmt: skip
    return tag("details", summary, *body, class_=f"gate {tone}", id=verdict_id(index),
               open=not verdict.passed)  # fmt: skip


def _arrows(text: str) -> str:
    return text.replace("->", "→")


def _override(verdict: Verdict) -> Safe | None:
    if verdict.override is None:
        return None
    return tag("p", states.icon("warn"), f" {verdict.override.operator} let this gate pass: "
               f"“{verdict.override.reason}”", class_="callout warn")  # fmt: skip


def check_table(checks: Iterable[Check]) -> Safe:
    """Failed checks first, blocking before warning; otherwise in the order of the suite."""
    ordered = sorted(checks, key=lambda c: (c.passed, 0 if c.passed else _RANK[c.severity]))
    head = tag("tr", *(tag("th", h, class_=c, scope="col") for h, c in (
        ("", "mark"), ("Check", ""), ("Observed", "num"), ("Allowed", "num"),
        ("Severity", ""), ("Offenders", ""), ("Threshold from", ""))))  # fmt: skip
    return tag("div", tag("table", tag("thead", head), tag("tbody", *map(_check_row, ordered)),
                          class_="checks"), class_="scroll")  # fmt: skip


def _check_row(check: Check) -> Safe:
    tone, text = ("ok", "passed") if check.passed else (
        ("bad", "failed") if check.severity == "block" else ("warn", "failed"))  # fmt: skip
    return tag(
        "tr",
        tag("td", states.icon(tone), tag("span", text, class_="sr"), class_="mark"),
        tag("td", tag("span", check.name, class_="check-name"),
            tag("span", check.description, class_="check-what")),
        tag("td", figures.value(check.observed), class_="num observed"),
        tag("td", check.threshold, class_="num threshold"),
        tag("td", tag("span", check.severity, class_=f"severity {check.severity}")),
        tag("td", _offenders(check.offenders)),
        tag("td", check.origin or figures.MISSING, class_="origin"),
        class_=f"check {tone}",
    )  # fmt: skip


def _offenders(ids: list[str]) -> Safe:
    if not ids:
        return tag("span", figures.MISSING, class_="quiet")
    shown = tag("code", ", ".join(ids[:2]))
    if len(ids) <= 2:
        return shown
    rest = tag("code", ", ".join(ids))
    return tag("details", tag("summary", shown, f" and {len(ids) - 2} more"), rest,
               class_="offenders")  # fmt: skip
