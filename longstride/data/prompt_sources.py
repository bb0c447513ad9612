"""RL prompts of the user's own: read, typed, checked, apart from SFT and every evaluation."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from pydantic import ValidationError

from longstride.data.answer_types import Question, open_question
from longstride.data.files.position import WHOLE_ROW
from longstride.data.files.reading import read_files
from longstride.data.measures.overlap import Problem, ProblemIndex
from longstride.data.measures.words import WordHasher
from longstride.data.tasks import is_sound
from longstride.data.text import problem_key
from longstride.errors import DataError
from longstride.rewards.generative.judge import check_prompt
from longstride.rewards.verifiers import verifier_of
from longstride.store.files import first_problem
from schemas.data import FileSource
from schemas.prompts import PromptSource
from schemas.rows import Document, RLPrompt

NGRAM = 8
"""Words of an n-gram that two problems may not share (open-r1, s1)."""


@dataclass
class UserPrompts:
    """What became of the rows of all sources: used, dropped for a reason, or quarantined."""

    prompts: list[RLPrompt] = field(default_factory=list)
    """Usable prompts, in the order of their files."""
    dropped: list[tuple[RLPrompt, str]] = field(default_factory=list)
    """Prompts that RL cannot use, with the reason."""
    quarantined: list[tuple[str, str, str]] = field(default_factory=list)
    """Rows that are no prompt: source, file and row, reason."""
    rewritten: int = 0
    """Multiple-choice questions that were made open-ended."""
    rows: Counter[str] = field(default_factory=Counter)
    """Rows by source."""


def read_prompts(sources: Iterable[PromptSource], taken: Iterable[Problem]) -> UserPrompts:
    """Read prompt sets and take out what RL must not use.

    Rows are prompts, dropped prompts and quarantined rows; nothing is lost silently. Reasons of
    dropped ones: a type that no rule can judge (`proof`, `multi_part`, `binary`,
    `multiple_choice`, `no_answer`), `unsound` (the verifier refuses the reference, or accepts a
    wrong answer), `duplicate`, `overlap` (with `taken`: the same problem, whole or by 8-gram).

    Raises:
        DataError: A source cannot be read, names an unknown verifier, or has no usable row.
    """
    found = UserPrompts()
    hasher = WordHasher()
    held = list(taken)
    index = ProblemIndex(held, NGRAM, hasher)
    seen: set[str] = set()
    taken_keys = {problem_key(problem.text) for problem in held}
    for source in sources:
        before = len(found.prompts)
        for prompt in _rows(source, found):
            words = hasher.hashes(prompt.prompt)
            key = problem_key(prompt.prompt)
            prompt, reason = _typed(prompt, found)
            if reason is None and key in seen:
                reason = "duplicate"
            if reason is None and (
                key in taken_keys or index.holds(words) or index.overlaps(words)
            ):
                reason = "overlap"
            if reason is None and prompt.judge == "rule" and not is_sound(prompt):
                reason = "unsound"
            if reason is None:
                seen.add(key)
                found.prompts.append(prompt)
            else:
                found.dropped.append((prompt, reason))
        if len(found.prompts) == before:
            raise DataError(_nothing(source, found))
    return found


def _typed(prompt: RLPrompt, found: UserPrompts) -> tuple[RLPrompt, str | None]:
    """The prompt, multiple choice made open-ended, and why a rule cannot judge it."""
    if prompt.judge == "model":
        return prompt, None
    question = open_question(prompt.prompt, prompt.answer)
    if not isinstance(question, Question):
        return prompt, question
    if not question.rewritten:
        return prompt, None
    found.rewritten += 1
    entry = {**prompt.entry, "question": question.text, "answer": question.answer}
    changed = {"prompt": question.text, "answer": question.answer, "entry": entry}
    return prompt.model_copy(update=changed), None


def _rows(source: PromptSource, found: UserPrompts) -> Iterable[RLPrompt]:
    files = FileSource(
        kind="files", name=source.name, domain="reasoning", uri=source.uri, text_field=WHOLE_ROW,
        split=source.split,
    )  # fmt: skip

    def quarantine(where: str, reason: str) -> None:
        found.rows[source.name] += 1
        found.quarantined.append((source.name, where, reason))

    for row in read_files(files, quarantine):
        try:
            prompt = _prompt(source, row)
        except (ValidationError, ValueError) as error:
            said = first_problem(error) if isinstance(error, ValidationError) else str(error)
            quarantine(row.path, said)
            continue
        found.rows[source.name] += 1
        _known_verifier(prompt)
        yield prompt


def _known_verifier(prompt: RLPrompt) -> None:
    if prompt.judge == "model":
        check_prompt(prompt)
    else:
        verifier_of(prompt)


def _prompt(source: PromptSource, row: Document) -> RLPrompt:
    if source.format == "prompts":
        return RLPrompt.model_validate_json(row.text)
    values = json.loads(row.text)
    if not isinstance(values, dict):
        raise ValueError("the row is not an object; give rows with a question and an answer")
    question, answer = (values.get(name) for name in (source.question_field, source.answer_field))
    if not isinstance(question, str) or not question.strip():
        raise ValueError(
            f"no text in {source.question_field!r} (it has {sorted(values)[:8]}); set "
            "question_field"
        )
    if not isinstance(answer, str | int | float) or isinstance(answer, bool):
        raise ValueError(
            f"no answer in {source.answer_field!r} (it has {sorted(values)[:8]}); set answer_field"
        )
    family = source.family or values.get("family") or source.name
    return RLPrompt(
        id=row.id,
        prompt=question.strip(),
        answer=str(answer).strip(),
        family=str(family),
        verifier=source.verifier_name,
        entry=values,
        judge=source.judge,
    )


def _nothing(source: PromptSource, found: UserPrompts) -> str:
    bad = [q for q in found.quarantined if q[0] == source.name]
    reasons = dict(Counter(reason for _, reason in found.dropped))
    first = f", first {bad[0][1]}: {bad[0][2]}" if bad else ""
    return (
        f"prompt source {source.name!r} at {source.uri} has no usable prompt: "
        f"{found.rows[source.name]} rows, {len(bad)} unreadable{first}; dropped {reasons}"
    )
