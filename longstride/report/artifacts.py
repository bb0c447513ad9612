"""What a directory holds is told by its files; a broken artifact becomes a note, not a crash."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from longstride.errors import DataError
from longstride.report.record import CollectedRun
from longstride.report.sampling import pick_answers, pick_rollouts
from longstride.report.vocabulary import token_texts
from longstride.store.files import read_json, read_jsonl, read_text
from schemas.audit import AuditRow
from schemas.ladder import LadderState
from schemas.rows import EvalResult, EvalSample, Rollout
from schemas.run import Evaluation, MetricPoint, TaskMetrics
from schemas.verdict import Verdict

Row = TypeVar("Row", bound=BaseModel)

KINDS = {
    "verdict.json": "verdict",
    "ladder_state.json": "ladder",
    "metrics.jsonl": "metrics",
    "rollouts.jsonl": "rollouts",
    "audit.jsonl": "audit",
    "result.json": "evaluation",
    "tokenizer.json": "tokenizer",
    "recipe.json": "recipe",
    "environment.json": "environment",
}


@dataclass
class Findings:
    """Everything read so far. Notes say in a sentence what could not be read."""

    verdicts: list[tuple[str, Verdict]] = field(default_factory=list)
    ladder: LadderState | None = None
    metrics: list[TaskMetrics] = field(default_factory=list)
    rollouts: dict[str, list[Rollout]] = field(default_factory=dict)
    audit: dict[str, list[AuditRow]] = field(default_factory=dict)
    evaluations: list[Evaluation] = field(default_factory=list)
    tokenizer: Path | None = None
    recipe: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    seen: set[Path] = field(default_factory=set)

    def read(self, place: Path, task: str, stage: str) -> None:
        """Read whatever `place`, a directory or one file, holds. A place is read once."""
        try:
            real = place.resolve()
            names = {place.name} if place.is_file() else set(KINDS) if place.is_dir() else set()
        except OSError as error:
            self.notes.append(f"{task}: {place} cannot be opened ({error.strerror})")
            return
        if not names:
            self.notes.append(f"{task}: its output {place} does not exist")
        if real in self.seen:
            return
        self.seen.add(real)
        directory = place.parent if place.is_file() else place
        for name in KINDS:
            if name not in names or not (directory / name).is_file():
                continue
            try:
                getattr(self, f"_{KINDS[name]}")(directory / name, task, stage)
            except (DataError, ValidationError) as error:
                self.notes.append(f"{task}: {error}")
            except OSError as error:
                self.notes.append(f"{task}: {directory / name} cannot be read ({error.strerror})")

    def _verdict(self, path: Path, task: str, stage: str) -> None:
        self.verdicts.append((task, read_json(path, Verdict)))

    def _ladder(self, path: Path, task: str, stage: str) -> None:
        state = read_json(path, LadderState)
        if self.ladder is None or len(state.history) >= len(self.ladder.history):
            self.ladder = state

    def _metrics(self, path: Path, task: str, stage: str) -> None:
        points, broken = [], 0
        for line in _lines(path):
            point = _point(line)
            broken += point is None
            if point is not None:
                points.append(point)
        if broken:
            self.notes.append(f"{task}: {broken} lines of {path} hold no finite metric; left out")
        if points:
            self.metrics.append(TaskMetrics(task=task, stage=stage, points=points))

    def _rollouts(self, path: Path, task: str, stage: str) -> None:
        rows = self._readable(path, Rollout, task)
        if rows:
            name = stage if stage not in self.rollouts else f"{stage} ({task})"
            self.rollouts[name] = pick_rollouts(rows)

    def _audit(self, path: Path, task: str, stage: str) -> None:
        rows = self._readable(path, AuditRow, task)
        if rows:
            self.audit[stage if stage not in self.audit else f"{stage} ({task})"] = rows

    def _evaluation(self, path: Path, task: str, stage: str) -> None:
        result = read_json(path, EvalResult)
        beside = path.with_name("samples.jsonl")
        samples = self._readable(beside, EvalSample, task) if beside.is_file() else []
        if not beside.is_file():
            self.notes.append(f"{task}: {beside} does not exist, so no answers are shown")
        self.evaluations.append(Evaluation(result=result, samples=pick_answers(samples)))

    def _tokenizer(self, path: Path, task: str, stage: str) -> None:
        self.tokenizer = path

    def _recipe(self, path: Path, task: str, stage: str) -> None:
        self.recipe = _object(path)

    def _environment(self, path: Path, task: str, stage: str) -> None:
        self.environment = _object(path)

    def _readable(self, path: Path, model: type[Row], task: str) -> list[Row]:
        """Rows up to the first broken one, which becomes a note."""
        rows: list[Row] = []
        try:
            rows.extend(read_jsonl(path, model))
        except DataError as error:
            self.notes.append(f"{task}: {error}; {len(rows)} rows before it are shown")
        return rows

    def fill(self, record: CollectedRun) -> CollectedRun:
        """Put everything into the record."""
        record.verdicts = [verdict for _, verdict in self.verdicts]
        record.verdict_tasks = [task for task, _ in self.verdicts]
        record.ladder, record.metrics = self.ladder, self.metrics
        record.rollouts, record.evaluations = self.rollouts, self.evaluations
        record.audit = self.audit
        record.recipe = self.recipe
        if isinstance(name := self.recipe.get("name"), str):
            record.name = name
        if isinstance(digest := self.environment.get("code_digest"), str):
            record.code_digest = digest
        record.versions = _strings(self.environment.get("versions"))
        record.machine = _strings(self.environment.get("machine"))
        record.tokens = self._tokens()
        record.notes = [*record.notes, *dict.fromkeys(self.notes)]
        return record

    def _tokens(self) -> dict[str, str]:
        rows = [row for rows in self.rollouts.values() for row in rows]
        if not rows:
            return {}
        if self.tokenizer is None:
            self.notes.append("no tokenizer was found, so rollouts show token ids")
            return {}
        try:
            return token_texts(
                self.tokenizer, {t for r in rows for t in (*r.prompt_tokens, *r.tokens)}
            )
        except DataError as error:
            self.notes.append(str(error))
            return {}


def _lines(path: Path) -> Iterator[str]:
    """Complete lines; a writer that is still running may have left half a line at the end."""
    text = read_text(path)
    complete = text[: text.rfind("\n") + 1]
    yield from complete.splitlines()


def _point(line: str) -> MetricPoint | None:
    try:
        row = json.loads(line)
        return MetricPoint(step=row["step"], name=row["name"], value=row["value"])
    except (ValueError, KeyError, TypeError):
        return None


def _object(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(read_text(path))
    except ValueError as error:
        raise DataError(f"{path} is not JSON ({error})") from error
    if not isinstance(content, dict):
        raise DataError(f"{path} holds a {type(content).__name__}, a JSON object was expected")
    return content


def _strings(value: Any) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {str(k): v if isinstance(v, str) else json.dumps(v) for k, v in value.items()}
