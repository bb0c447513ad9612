"""The entry of a quality gate: verify, measure, judge, decide, write the verdict, then obey it.

Imports stay light: Great Expectations, pandas, torch and the tokenizer load only when a gate runs.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory

from longstride.errors import DataError, GateCouldNotRun, LongstrideError, QualityGateBlocked
from longstride.gates import verdict as gates
from longstride.quality import baselines
from longstride.quality.baselines import PROFILE
from longstride.quality.deadline import deadline, seconds_for
from longstride.quality.frame import Measured
from longstride.quality.page import verdict_page
from longstride.quality.subject import Artifact, Subject
from longstride.quality.suites import EDGES, Suite, load_suite, resolve
from longstride.store.artifacts import open_artifact, open_manifest, publish
from longstride.store.files import read_text, write_json, write_text
from schemas.artifacts import ArtifactKind, CheckpointManifest
from schemas.recipe import Recipe
from schemas.verdict import EDGE_TITLES, Check, Edge, Override, Profile, Severity, Verdict

CHECKPOINT_MANIFEST = "checkpoint.json"
_SHOWN_OFFENDERS = 3


@dataclass(frozen=True)
class EdgeInputs:
    """Where an edge is measured and what kinds of artifact it takes."""

    module: str
    subject: ArtifactKind
    reference: ArtifactKind | None
    reference_required: bool = True


INPUTS: dict[Edge, EdgeInputs] = {
    "E1": EdgeInputs("measure_documents", "documents", "tokenizer"),
    "E2": EdgeInputs("measure_packed", "packed", "tokenizer"),
    "E3": EdgeInputs("measure_chat", "packed", "chat"),
    "E4": EdgeInputs("measure_prompts", "prompts", "chat"),
    "E5": EdgeInputs("measure_rollouts", "rollouts", None),
    "E7": EdgeInputs("measure_checkpoint", "checkpoint", "checkpoint", reference_required=False),
    "E8": EdgeInputs("measure_evals", "eval", "eval"),
}


def run_gate(
    edge: Edge,
    stage: str,
    recipe: Recipe,
    subject: Path,
    reference: Path | None,
    out: Path,
    html: Path | None = None,
    override: Override | None = None,
) -> Verdict:
    """Guard one edge: write `verdict.json` and `report.html` into `out`, then let pass or raise.

    Args:
        edge: E1 to E8 without E6, which is the ladder.
        stage: Stage of the run, for example `extend-2`; says which settings of the recipe apply.
        recipe: The resolved recipe.
        subject: Artifact directory to measure.
        reference: Artifact directory to measure it against (`INPUTS` says which kind).
        out: Directory of the verdict artifact.
        html: Where a second copy of the page goes.
        override: Lets a blocked gate pass and is recorded. An unreadable subject stays refused.

    Raises:
        QualityGateBlocked: A blocking check failed, or the subject cannot be read; after writing.
        GateCouldNotRun: The measuring itself failed; there is no verdict.
        RecipeError: `quality.thresholds` names an unknown check.
    """
    if edge not in INPUTS:
        raise GateCouldNotRun(f"{edge} has no suite; edges are {', '.join(EDGES)}")
    suite = resolve(load_suite(edge), recipe)
    with scratch_beside(out) as scratch:
        return _run(suite, stage, recipe, subject, reference, Places(out, html, scratch), override)


@dataclass(frozen=True)
class Places:
    """Where a gate writes."""

    out: Path
    html: Path | None
    scratch: Path


@contextmanager
def scratch_beside(out: Path) -> Iterator[Path]:
    """A directory on the disk of `out` that is gone afterwards."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        made = TemporaryDirectory(prefix=f".{out.name}.", dir=out.parent)
    except OSError as error:
        raise GateCouldNotRun(f"there is no room to measure beside {out}: {error}") from error
    with made as name:
        yield Path(name)


def _run(
    suite: Suite,
    stage: str,
    recipe: Recipe,
    subject: Path,
    reference: Path | None,
    places: Places,
    override: Override | None,
) -> Verdict:
    edge = suite.edge
    try:
        with deadline(seconds_for(recipe), f"{edge} at stage {stage!r}") as end:
            found = _look(suite, stage, recipe, subject, reference, places.scratch, end)
    except DataError as error:
        refused = _unreadable(edge, stage, suite.digest, error)
        _write(Looked(refused), subject, places)
        raise QualityGateBlocked(_message(refused, places.out)) from error
    except (OSError, MemoryError) as error:
        raise GateCouldNotRun(f"{edge} at stage {stage!r} could not run: {error}") from error
    verdict = gates.decide(
        edge,
        stage,
        found.checks,
        rows=found.measured.rows.count if found.measured else 0,
        suite_digest=suite.digest,
        subject_digest=found.digest,
        note=found.note,
        override=override,
        baseline=found.baseline,
    )
    looked = Looked(verdict, found.measured, found.profile, found.before, suite)
    _write(looked, subject, places)
    if not verdict.passed:
        raise QualityGateBlocked(_message(verdict, places.out))
    return verdict


@dataclass(frozen=True)
class _Found:
    """What measuring and judging gave."""

    digest: str
    checks: list[Check]
    measured: Measured | None = None
    profile: Profile | None = None
    before: Profile | None = None
    note: str = ""
    baseline: str = ""


def _look(
    suite: Suite,
    stage: str,
    recipe: Recipe,
    subject: Path,
    reference: Path | None,
    scratch: Path,
    end: float,
) -> _Found:
    edge = suite.edge
    artifact = _open(subject, INPUTS[edge].subject)
    against = _open_reference(edge, reference)
    if edge == "E5" and (note := _passed_through(artifact)):
        return _Found(artifact.digest, [], note=note)
    measured = measure_edge(edge, Subject(stage, recipe, artifact, against), scratch, end)

    from longstride.quality.profile import make_profile
    from longstride.quality.run_suite import run_suite

    profile = make_profile(edge, stage, recipe, artifact.digest, measured)
    before = baselines.find(recipe.name, edge, stage)
    checks = run_suite(suite, measured, recipe.quality.offenders, profile, before)
    return _Found(
        artifact.digest, checks, measured, profile, before,
        baseline=before.subject_digest if before else "",
    )  # fmt: skip


def measure_edge(edge: Edge, subject: Subject, scratch: Path, end: float | None = None) -> Measured:
    """Measure the subject of an edge; rows go to a file in `scratch`.

    Raises:
        DataError: The subject cannot be read.
        GateCouldNotRun: The measuring itself failed, or the time `end` has passed.
    """
    from longstride.quality.frame import MEASURED, RowWriter

    module = import_module(f"longstride.quality.{INPUTS[edge].module}")
    measure: Callable[[Subject, RowWriter], Measured] = module.measure
    with RowWriter(scratch / MEASURED, module.COLUMNS, end) as writer:
        return measure(subject, writer)


@dataclass(frozen=True)
class KnownCheck:
    """One check as a plan shows it."""

    key: str
    """`edge/check`, the key in `recipe.quality.thresholds`."""
    severity: Severity
    threshold: float | None
    """Default; None when the rule is exact, or comes from `threshold_field`."""
    threshold_field: str | None
    """Recipe field that the default is taken from."""
    description: str
    origin: str


def describe_checks() -> list[KnownCheck]:
    """Every check of every edge with its default threshold; nothing heavy is imported."""
    return [
        KnownCheck(
            key=f"{edge}/{spec.name}",
            severity=spec.severity,
            threshold=spec.threshold,
            threshold_field=spec.threshold_field,
            description=spec.description,
            origin=spec.origin,
        )
        for edge in EDGES
        for spec in load_suite(edge).checks
    ]


def _open(path: Path, kind: ArtifactKind) -> Artifact:
    if kind == "checkpoint":
        found = open_manifest(path, kind, CheckpointManifest, CHECKPOINT_MANIFEST)
        return Artifact(path, found)
    return Artifact(path, open_artifact(path, kind))


def _open_reference(edge: Edge, path: Path | None) -> Artifact | None:
    """A broken reference says nothing about the subject, so it is no refusal of it."""
    inputs = INPUTS[edge]
    if inputs.reference is None or (path is None and not inputs.reference_required):
        return None
    if path is None:
        raise GateCouldNotRun(f"{edge} needs a {inputs.reference} artifact to measure against")
    try:
        return _open(path, inputs.reference)
    except DataError as error:
        raise GateCouldNotRun(f"{edge}: the reference cannot be used: {error}") from error


def _passed_through(rollouts: Artifact) -> str:
    """Say that a round did nothing because the ladder had ended; empty for a round that ran."""
    path = rollouts.path / "summary.json"
    try:
        summary = json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise DataError(f"{path} is not JSON: {error}") from error
    if not isinstance(summary, dict):
        raise DataError(f"{path} must hold a JSON object, got {type(summary).__name__}")
    if summary.get("passed_through") is True:
        return "the round was passed through because the ladder had ended; nothing to measure"
    return ""


def _unreadable(edge: Edge, stage: str, suite_digest: str, error: LongstrideError) -> Verdict:
    check = Check(
        name="readable",
        description="The artifact is whole: manifest, sha256 of every file, schema of every row.",
        severity="block",
        passed=False,
        observed=str(error),
        threshold="every file and row can be read",
        origin="TFDV, Deequ",
    )
    return gates.decide(
        edge, stage, [check], rows=0, suite_digest=suite_digest, subject_digest="unread"
    )


@dataclass(frozen=True)
class Looked:
    """A verdict with what its page and its artifact hold besides."""

    verdict: Verdict
    measured: Measured | None = None
    profile: Profile | None = None
    before: Profile | None = None
    suite: Suite | None = None


def _write(looked: Looked, subject: Path, places: Places) -> None:
    verdict, out = looked.verdict, places.out
    page = verdict_page(verdict, subject.name, looked.profile, looked.before, looked.suite)
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "verdict.json", verdict)
        write_text(out / "report.html", page)
        if looked.profile is not None and looked.measured is not None:
            write_json(out / PROFILE, looked.profile)
            os.replace(looked.measured.rows.path, out / looked.measured.rows.path.name)
        publish(out, "verdict", verdict.stage, parents={"subject": verdict.subject_digest})
        if places.html is not None:
            write_text(places.html, page)
    except OSError as error:
        raise GateCouldNotRun(
            f"the verdict of {verdict.edge} could not be written: {error}"
        ) from error


def _message(verdict: Verdict, out: Path) -> str:
    def told(check: Check) -> str:
        if check.name == "readable":
            return str(check.observed)
        value = f"{check.observed:.4g}" if isinstance(check.observed, float) else check.observed
        rows = f" (rows {', '.join(check.offenders[:_SHOWN_OFFENDERS])})" if check.offenders else ""
        return f"{check.name} is {value}, must be {check.threshold}{rows}"

    failed = "; ".join(told(check) for check in verdict.blocked_by)
    name = f"{verdict.edge}/{verdict.stage}"
    fix = (
        "mend the data"
        if any(check.name == "readable" for check in verdict.checks)
        else (
            "mend the data or set a threshold in quality.thresholds and start a new run, or let "
            f"this one pass: longstride override RUN {name} --by WHO --reason WHY"
        )
    )
    return (
        f"{verdict.edge} ({EDGE_TITLES[verdict.edge]}) blocks stage {verdict.stage!r}: {failed}. "
        f"See {out / 'report.html'}; {fix}"
    )
