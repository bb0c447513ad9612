"""Calibration of a judge on answers that people have judged: a report as JSON and Markdown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from pydantic import Field

from longstride.errors import DataError
from longstride.rewards.generative.agreement import (
    BestOfN,
    Measured,
    accuracy,
    best_of_n,
    kappa,
    measured,
    quadratic_kappa,
)
from longstride.rewards.generative.judge import JUDGED, ModelJudge
from longstride.rewards.generative.templates import load_template
from longstride.rewards.protocol import Judgment, NotJudged, Score, Submission
from longstride.store.files import write_json, write_text
from schemas.base import Contract
from schemas.judging import CONSISTENCY, GRADES, LabelledAnswer
from schemas.rows import RLPrompt

OUTCOMES = (-1, 0, 1)
_BEST_OF = (1, 2, 4, 8, 16, 32, 64)


class Agreement(Contract):
    """A judge beside people, for one kind of judgment."""

    verifier: str
    """Kind of judgment."""
    answers: int
    """Labelled answers."""
    judged: int
    """Those that the judge judged."""
    not_judged: dict[str, int]
    """The others, by reason."""
    problems: int
    """Problems that the judged ones belong to."""
    accuracy: Measured | None
    """Share of equal labels."""
    kappa: Measured | None
    """Cohen's kappa; null where one label only occurs."""
    quadratic_kappa: Measured | None
    """Cohen's kappa with quadratic weights."""
    confusion: dict[str, dict[str, int]]
    """Count by people's label, then by the judge's."""
    best_of_n: list[BestOfN]
    """By n; empty where nobody said which answers are right."""


class CalibrationReport(Contract):
    """What `longstride calibrate-judge` measures."""

    model: str
    """The judge."""
    template_versions: dict[str, int] = Field(default_factory=dict)
    """By kind of judgment."""
    agreements: list[Agreement]
    """By kind of judgment."""
    metrics: dict[str, float]
    """What it cost."""


def calibrate(judge: ModelJudge, rows: Sequence[LabelledAnswer]) -> CalibrationReport:
    """Judge every labelled answer and compare with people.

    Raises:
        DataError: no rows, an id twice, or answers of one problem with different texts of it.
    """
    _check(rows)
    judgments = judge.judge_all([_submission(row) for row in rows])
    kinds = sorted({row.verifier for row in rows})
    agreements = []
    for kind in kinds:
        pairs = [(r, j) for r, j in zip(rows, judgments, strict=True) if r.verifier == kind]
        agreements.append(_agreement(kind, pairs))
    return CalibrationReport(
        model=judge.config.model,
        template_versions={kind: load_template(kind).version for kind in kinds},
        agreements=agreements,
        metrics=judge.metrics(),
    )


def write_report(report: CalibrationReport, folder: Path) -> Path:
    """Write calibration.json and calibration.md; return the latter."""
    write_json(folder / "calibration.json", report)
    path = folder / "calibration.md"
    write_text(path, markdown(report))
    return path


def markdown(report: CalibrationReport) -> str:
    """The report for people."""
    lines = [f"# Calibration of {report.model}", ""]
    for found in report.agreements:
        reasons = ", ".join(f"{n} {reason}" for reason, n in sorted(found.not_judged.items()))
        lines += [
            f"## {found.verifier} (template version {report.template_versions[found.verifier]})",
            "",
            f"{found.judged} of {found.answers} answers to {found.problems} problems were judged"
            + (f"; not judged: {reasons}." if reasons else "."),
            "",
            "| measure | estimate | 95% interval |",
            "|---|---|---|",
        ]
        for name in ("accuracy", "kappa", "quadratic_kappa"):
            value: Measured | None = getattr(found, name)
            cells = (
                f"{value.estimate:.3f} | {value.low:.3f} to {value.high:.3f}"
                if value
                else "not defined |"
            )
            lines.append(f"| {name.replace('_', ' ')} | {cells} |")
        labels = list(found.confusion)
        lines += [
            "",
            f"| people \\ judge | {' | '.join(labels)} |",
            "|---" * (len(labels) + 1) + "|",
        ]
        lines += [
            f"| {label} | {' | '.join(str(n) for n in row.values())} |"
            for label, row in found.confusion.items()
        ]
        if found.best_of_n:
            lines += ["", "| n | best of n | pass@n | gap | problems |", "|---|---|---|---|---|"]
            lines += [
                f"| {b.n} | {b.selected:.3f} | {b.any_right:.3f} | {b.gap:.3f} | {b.problems} |"
                for b in found.best_of_n
            ]
        lines.append("")
    return "\n".join(lines)


def _check(rows: Sequence[LabelledAnswer]) -> None:
    if not rows:
        raise DataError("there are no labelled answers; write at least one row")
    twice = [name for name, n in Counter(row.id for row in rows).items() if n > 1]
    if twice:
        raise DataError(f"labelled answer {twice[0]!r} occurs twice; ids must be unique")
    texts: dict[str, str] = {}
    for row in rows:
        if texts.setdefault(row.prompt_id, row.prompt) != row.prompt:
            raise DataError(
                f"labelled answer {row.id!r}: its problem {row.prompt_id!r} has another text in an "
                "earlier row; give it another prompt_id"
            )


def _submission(row: LabelledAnswer) -> Submission:
    prompt = RLPrompt(
        id=row.prompt_id, prompt=row.prompt, answer=row.reference, family=row.family,
        verifier=row.verifier, entry={}, judge="model",
    )  # fmt: skip
    return Submission(prompt, row.answer)


def _agreement(kind: str, pairs: Sequence[tuple[LabelledAnswer, Judgment]]) -> Agreement:
    scale = GRADES if kind == CONSISTENCY else OUTCOMES
    part = "grade" if kind == CONSISTENCY else "outcome"
    judged = [(row, found) for row, found in pairs if isinstance(found, Score)]
    people = [row.label for row, _ in judged]
    said = [int(score.parts[part]) for _, score in judged]
    problems = [row.prompt_id for row, _ in judged]
    counts = Counter(zip(people, said, strict=True))
    groups: dict[str, list[tuple[float, bool]]] = {}
    for row, score in judged:
        if row.correct is not None:
            groups.setdefault(row.prompt_id, []).append((score.parts[JUDGED], row.correct))
    gaps = [best_of_n(list(groups.values()), n) for n in _BEST_OF]
    values = {
        name: measured(statistic, people, said, problems, scale) if judged else None
        for name, statistic in (
            ("accuracy", accuracy), ("kappa", kappa), ("quadratic_kappa", quadratic_kappa),
        )
    }  # fmt: skip
    return Agreement(
        verifier=kind,
        answers=len(pairs),
        judged=len(judged),
        not_judged=dict(Counter(j.reason for _, j in pairs if isinstance(j, NotJudged))),
        problems=len(set(problems)),
        confusion={str(a): {str(b): counts[a, b] for b in scale} for a in scale},
        best_of_n=[gap for gap in gaps if gap is not None],
        **values,
    )
