"""`longstride quality`: a gate on files of one's own; `longstride bless`: a new baseline."""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path

from longstride.errors import (
    DataError,
    GateCouldNotRun,
    QualityGateBlocked,
    UsageError,
)
from longstride.quality.bare_files import as_artifact
from longstride.quality.baselines import bless
from longstride.quality.gate import INPUTS, run_gate
from longstride.quality.suites import EDGES
from longstride.store.files import read_json
from schemas.recipe import Recipe
from schemas.verdict import EDGE_TITLES, Edge, Verdict

PASSED = 0
BLOCKED = 3
COULD_NOT_RUN = 4
WORDS: dict[str, tuple[Edge, str]] = {
    "corpus": ("E1", "corpus"),
    "documents": ("E1", "corpus"),
    "packed": ("E2", "pretrain"),
    "pretrain": ("E2", "pretrain"),
    "sft": ("E3", "sft"),
    "chat": ("E3", "sft"),
    "prompts": ("E4", "rl-prompts"),
    "rollouts": ("E5", "rl-1"),
    "checkpoint": ("E7", "pretrain"),
    "eval": ("E8", "benchmark"),
    "benchmark": ("E8", "benchmark"),
}
"""Edges by word, with the stage whose settings apply unless --stage says otherwise."""


def edge_of(text: str) -> tuple[Edge, str]:
    """Edge and stage of a number (`E3`) or of a word (`sft`, `extend-1`).

    Raises:
        UsageError: There is no such edge.
    """
    for edge in EDGES:
        if text.upper() == edge:
            return edge, next(stage for named, stage in WORDS.values() if named == edge)
    if text.startswith("extend-"):
        return "E2", text
    if text in WORDS:
        return WORDS[text]
    raise UsageError(
        f"there is no edge {text!r}; edges are {', '.join(EDGES)}, or by word "
        f"{', '.join(WORDS)} and extend-<n>"
    )


def quality(arguments: argparse.Namespace, recipe: Recipe) -> int:
    """Run the gate of an edge; the exit code tells passed, blocked and could not run apart."""
    edge, stage = edge_of(arguments.edge)
    stage = arguments.stage or stage
    out: Path = arguments.out or Path(f"{arguments.path.name}.quality")
    if not arguments.path.exists():
        raise UsageError(f"{arguments.path} does not exist; name an artifact folder or a file")
    try:
        with tempfile.TemporaryDirectory(prefix="longstride-quality-") as scratch:
            kind, against = INPUTS[edge].subject, INPUTS[edge].reference
            subject = as_artifact(arguments.path, kind, stage, Path(scratch) / "subject")
            reference = arguments.reference
            if reference is not None and against is not None:
                reference = as_artifact(reference, against, stage, Path(scratch) / "reference")
            run_gate(edge, stage, recipe, subject, reference, out)
    except QualityGateBlocked as error:
        return _tell(arguments, edge, out, BLOCKED, str(error))
    except (GateCouldNotRun, DataError) as error:
        return _tell(arguments, edge, out, COULD_NOT_RUN, f"blocked: could not check: {error}")
    return _tell(arguments, edge, out, PASSED, "")


def _tell(arguments: argparse.Namespace, edge: Edge, out: Path, code: int, problem: str) -> int:
    word = {PASSED: "passed", BLOCKED: "blocked", COULD_NOT_RUN: "could not run"}[code]
    path = out / "verdict.json"
    verdict = read_json(path, Verdict) if code != COULD_NOT_RUN else None
    if arguments.json:
        told: dict[str, object] = {
            "edge": edge,
            "outcome": word,
            "problem": problem,
            "report": str(out),
        }
        told |= {"verdict": verdict.model_dump(mode="json")} if verdict else {}
        print(json.dumps(told, indent=1, sort_keys=True))
        return code
    print(f"{edge} {EDGE_TITLES[edge]}: {word}")
    for check in verdict.checks if verdict else []:
        if not check.passed:
            rows = f"  rows {', '.join(check.offenders[:3])}" if check.offenders else ""
            print(f"  {check.severity:5} {check.name}: {check.observed}, must be "
                  f"{check.threshold}{rows}")  # fmt: skip
    if verdict:
        passed = sum(check.passed for check in verdict.checks)
        print(f"  {passed} of {len(verdict.checks)} checks passed on {verdict.rows} rows; "
              f"report {out / 'report.html'}")  # fmt: skip
    else:
        print(f"  {problem}")
    return code


def bless_run(arguments: argparse.Namespace, run_dir: Path) -> int:
    """Make a run's gates the baselines of later runs of its recipe."""
    for name in bless(run_dir, arguments.store):
        print(f"blessed {name}")
    return PASSED
