"""Questions whose answers a rule cannot judge, and multiple choice made open-ended.

The types are those that MiniMax-M1 (section 4.1) and Big-Math (arXiv 2502.17387) take out: proofs,
several parts in one question, answers that can be guessed (yes or no, true or false). A multiple
choice question becomes an open one where its text stands without the options.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal

Unsuitable = Literal["proof", "multi_part", "binary", "multiple_choice", "no_answer"]

_PROOF: Final = re.compile(
    r"\b(?:dis)?prove\b|\bshow that\b|\bdemonstrate that\b|\bgive a proof\b|\bprove or disprove\b",
    re.IGNORECASE,
)
_BINARY_QUESTION: Final = re.compile(
    r"\btrue or false\b|\byes or no\b|\bfalse or true\b|\bno or yes\b", re.IGNORECASE
)
_BINARY_ANSWERS: Final = frozenset({"yes", "no", "true", "false", "correct", "incorrect"})
_PART: Final = re.compile(
    r"(?:^|\n|(?<=[.;:?!]) )\s*"
    r"(?:\(?(?P<label>[a-h]|i{1,3}|iv|v)\)|part (?P<part>[a-h1-9])\b)\s*\S",
    re.IGNORECASE,
)
_OPTION: Final = re.compile(
    r"(?:(?:^|\s)\(?(?P<letter>[A-H])(?:\)|\.|:)|"
    r"\\text(?:bf|rm)?\{\s*\(?(?P<set>[A-H])\)?[.:]?\s*\})\s*(?=\S)"
)
_NEEDS_OPTIONS: Final = re.compile(
    r"\bwhich (?:one )?(?:of|among)\b|\bof (?:the|these) (?:following|options|choices)\b|"
    r"\bfollowing (?:statements|options|choices|answers|expressions)\b|\bwhich (?:statement|option|"
    r"choice|answer)\b|\b(?:best|most likely|closest)\b|\bexcept\b|\bbelow\b",
    re.IGNORECASE,
)
_REFERS_TO_OPTIONS: Final = re.compile(
    r"\b(?:all|none|both|neither|any) of\b|\bcannot be determined\b|^\(?[A-H]\)? and \(?[A-H]\)?$",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Question:
    """A question with its reference answer."""

    text: str
    """The question."""
    answer: str
    """The reference."""
    rewritten: bool = False
    """Whether it was multiple choice."""


def open_question(text: str, answer: str) -> Question | Unsuitable:
    """The question as RL can use it, or the type that makes it unsuitable."""
    answer = answer.strip()
    if not answer:
        return "no_answer"
    if _PROOF.search(text):
        return "proof"
    if _BINARY_QUESTION.search(text):
        return "binary"
    options = _options(text)
    question = Question(text.strip(), answer)
    if options is not None:
        opened = _without_options(*options, answer)
        if opened is None:
            return "multiple_choice"
        question = opened
    if question.answer.strip(" .").casefold() in _BINARY_ANSWERS:
        return "binary"
    if _parts(question.text) >= 2:
        return "multi_part"
    return question


def _options(text: str) -> tuple[str, dict[str, str]] | None:
    """The text before the options, and the options by letter; None where there are none."""
    found = list(_OPTION.finditer(text))
    for start, first in enumerate(found):
        if _letter(first) != "A":
            continue
        run = [first]
        for mark in found[start + 1 :]:
            if ord(_letter(mark)) == ord(_letter(run[-1])) + 1:
                run.append(mark)
        if len(run) >= 3:
            ends = [mark.start() for mark in run[1:]] + [len(text)]
            options = {
                _letter(mark): _plain(text[mark.end() : end])
                for mark, end in zip(run, ends, strict=True)
            }
            stem = text[: first.start()].strip()
            if stem.endswith("$") and stem.count("$") % 2:
                stem = stem[:-1].rstrip()  # the formula began before the first option
            return stem, options
    return None


def _letter(mark: re.Match[str]) -> str:
    return mark["letter"] or mark["set"]


def _plain(option: str) -> str:
    """An option without the marks that LaTeX sets between options."""
    return re.sub(r"(?:\\qquad|\\quad|\\ |~|\$\s*$|^\s*\$)+", " ", option).strip(" ;,\n\t")


def _without_options(stem: str, options: dict[str, str], answer: str) -> Question | None:
    letter = re.fullmatch(r"\(?([A-Ha-h])[).:]?", answer)
    if letter is not None:
        chosen = options.get(letter[1].upper())
    else:
        same = [text for text in options.values() if text.casefold() == answer.casefold()]
        chosen = same[0] if same else None
    if not chosen or len(stem.split()) < 3 or _NEEDS_OPTIONS.search(stem):
        return None
    if any(_REFERS_TO_OPTIONS.search(text) for text in options.values()):
        return None
    return Question(stem, chosen, rewritten=True)


def _parts(text: str) -> int:
    labels = {(m["label"] or m["part"]).casefold() for m in _PART.finditer(text)}
    return len(labels) if labels & {"a", "i", "1"} else 0
