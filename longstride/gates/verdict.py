"""Measured checks -> the verdict of a quality gate."""

from __future__ import annotations

from collections.abc import Sequence

from longstride.errors import GateCouldNotRun
from schemas.verdict import Check, Edge, Override, Verdict


def decide(
    edge: Edge,
    stage: str,
    checks: Sequence[Check],
    *,
    rows: int,
    suite_digest: str,
    subject_digest: str,
    note: str = "",
    override: Override | None = None,
    baseline: str = "",
) -> Verdict:
    """Pass unless a check of severity `block` failed and no operator overrides it.

    An override is recorded only when it changed the outcome, so that a verdict with an override
    always means "was blocked".

    Raises:
        GateCouldNotRun: Nothing was measured and no note says why, or two checks share a name.
    """
    if not checks and not note:
        raise GateCouldNotRun(
            f"{edge} at stage {stage!r} measured nothing; a gate without checks never passes, so "
            "give the edge a suite or say in the note why there is nothing to measure"
        )
    names = [check.name for check in checks]
    if repeated := sorted({name for name in names if names.count(name) > 1}):
        raise GateCouldNotRun(f"{edge} at stage {stage!r} measured {repeated} more than once")
    blocked = any(check.severity == "block" and not check.passed for check in checks)
    return Verdict(
        edge=edge,
        stage=stage,
        passed=not blocked or override is not None,
        checks=list(checks),
        rows=rows,
        suite_digest=suite_digest,
        subject_digest=subject_digest,
        note=note,
        override=override if blocked else None,
        baseline=baseline,
    )
