"""The page of all checks, made from the suites: `python -m longstride.quality.catalogue`."""

from __future__ import annotations

import sys
from pathlib import Path

from longstride.quality.run_suite import rule_text
from longstride.quality.suites import EDGES, CheckSpec, Suite, load_suite
from longstride.store.files import write_text
from schemas.verdict import EDGE_TITLES

_HEAD = """# Quality gates

This page is made from `schemas/suites/` by `python -m longstride.quality.catalogue`; a test keeps
the two equal. `docs/decisions/015-profiles-judged-not-rows.md` says how a gate works.

A check of severity *block* stops the run, *warn* is shown, *info* is recorded. `T` is a threshold
that a recipe may set: `quality.thresholds: {E1/duplicates: 0.002}`. A rule on *rows* allows a share
of rows to break it, none unless a threshold says so. A rule of *drift* is told against the last
blessed run of the same recipe (`longstride bless RUN`) and never blocks. Where a rule does not
apply, the verdict says so and what it applies to. A gate that cannot measure (a missing column, no
rows, an exception, a deadline) passes nothing: it fails as `GateCouldNotRun`, which is never the
same as a refusal.

Any gate runs on files of your own, outside a pipeline:

    longstride quality my.jsonl --edge corpus --reference runs/R/.../tokenizer --recipe my.yaml

It exits with 0 passed, 3 blocked, 4 could not check, 2 wrong usage.
"""


def catalogue() -> str:
    """The page as Markdown."""
    suites = [load_suite(edge) for edge in EDGES]
    total = sum(len(suite.checks) for suite in suites)
    return "\n".join([_HEAD, f"{total} checks in all.", *map(_section, suites)]) + "\n"


def _section(suite: Suite) -> str:
    title = EDGE_TITLES[suite.edge].replace("->", "→")
    head = [f"\n## {suite.edge}: {title}\n", "| check | rule | T | severity | origin |",
            "|---|---|---|---|---|"]  # fmt: skip
    return "\n".join(head + [_row(spec) for spec in suite.checks])


def _row(spec: CheckSpec) -> str:
    told = f"**{spec.name}**<br>{spec.description}"
    if spec.applies and spec.level != "drift":
        told += f" Applies to {spec.applies}."
    threshold = spec.threshold_field or ("" if spec.threshold is None else f"{spec.threshold:g}")
    cells = (told, f"{spec.level}: `{_rule(spec)}`", threshold, spec.severity, spec.origin)
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def _rule(spec: CheckSpec) -> str:
    """The rule with `T` where the threshold goes."""
    if spec.level == "drift":
        return f"within T of the last {spec.column}"
    names = {"{threshold}": "T", "{-threshold}": "-T", "{1 - threshold}": "1 - T"}
    arguments = {key: names.get(str(value), value) for key, value in spec.arguments.items()}
    low, high = arguments.get("min_value"), arguments.get("max_value", arguments.get("limit"))
    if low is not None and high is not None:
        rule = f"{low} <= {spec.column} <= {high}"
    elif low is not None:
        rule = f"{spec.column} >= {low}"
    elif high is not None:
        rule = f"{spec.column} <= {high}"
    else:
        plain = spec.model_copy(update={"level": "summary"})
        rule = f"{spec.column} {rule_text(plain)}"
    return f"{rule}, but for T of rows" if spec.mostly is not None else rule


if __name__ == "__main__":
    write_text(Path(sys.argv[1] if len(sys.argv) > 1 else "docs/quality-gates.md"), catalogue())
