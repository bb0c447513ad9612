"""E4: RL prompts before the first round."""

from __future__ import annotations

import re
from collections import Counter
from hashlib import sha256
from pathlib import Path
from typing import Final

from longstride.data.measures.overlap import Problem, ProblemIndex
from longstride.data.measures.words import WordHasher
from longstride.quality.benchmark import NGRAM, benchmark_index
from longstride.quality.frame import Columns, Measured, RowFacts, RowWriter, Seen, require_rows
from longstride.quality.subject import Subject, reference_faults
from longstride.store.files import read_jsonl
from schemas.judging import MODEL_VERIFIERS
from schemas.recipe import Recipe
from schemas.rows import ChatExample, RLPrompt

_PROOF: Final = re.compile(r"\b(?:prove|show) that\b|\bgive a proof\b", re.IGNORECASE)
_TRUE_FALSE: Final = re.compile(r"\btrue or false\b|\byes or no\b", re.IGNORECASE)
_CHOICES: Final = re.compile(r"^\s*\(?[A-D][).:]\s+\S", re.MULTILINE)
_ASSERT: Final = re.compile(r"^\s*assert\b", re.MULTILINE)
_PARTS: Final = re.compile(r"^\s*\(?(?:[a-d]|i{1,3})\)\s+\S", re.MULTILINE)

COLUMNS: Final[Columns] = {
    "id": "text",
    "family": "text",
    "level": "count",
    "answer_verifies": "flag",
    "wrong_answer_accepted": "flag",
    "unverifiable_type": "flag",
    "benchmark_problem": "flag",
    "benchmark_ngram": "flag",
    "sft_prompt": "flag",
    "pass_rate_measured": "flag",
    "pass_rate": "number",
    "in_band": "flag",
    "prompt_words": "count",
    "words_over_room": "count",
    "tests": "count",
    "duplicate": "flag",
}


def measure(subject: Subject, writer: RowWriter) -> Measured:
    """Measure RL prompts; the reference is the chat examples of SFT.

    Raises:
        DataError: A row cannot be read, there is none, or it names an unknown verifier.
        GateCouldNotRun: The chat examples or the benchmark's problems cannot be used.
    """
    import polars as pl

    path = subject.path / "prompts.jsonl"
    hasher = WordHasher()
    held_out = benchmark_index(subject.recipe, hasher)
    taught = _taught(subject.against / "examples.jsonl", hasher)
    seen = Seen()
    families: Counter[str] = Counter()
    for prompt in read_jsonl(path, RLPrompt):
        row = _facts(prompt, held_out, taught, hasher)
        row["duplicate"] = seen.again(sha256(hasher.hashes(prompt.prompt).tobytes()).digest())
        row["in_band"] = _in_band(prompt, subject.recipe)
        row["words_over_room"] = max(0, int(row["prompt_words"] or 0) - _room(subject.recipe))
        families[prompt.family] += 1
        writer.append(row)
    require_rows(writer.count, path, "prompts")
    rows = writer.finish()
    summary, culprits = _summary(families, subject)
    summary |= rows.facts(mean_pass_rate=pl.col("pass_rate").mean())
    return Measured(rows, summary, culprits)


def _taught(path: Path, hasher: WordHasher) -> ProblemIndex:
    """User turns of SFT."""
    with reference_faults("the chat examples"):
        turns = [
            Problem(example.id, example.family, message.content)
            for example in read_jsonl(path, ChatExample)
            for message in example.messages
            if message.role == "user"
        ]
    return ProblemIndex(turns, NGRAM, hasher)


def _facts(
    prompt: RLPrompt, held_out: ProblemIndex, taught: ProblemIndex, hasher: WordHasher
) -> RowFacts:
    words = hasher.hashes(prompt.prompt)
    return {
        "id": prompt.id,
        "family": prompt.family,
        "level": prompt.level,
        **_verifier_facts(prompt),
        "unverifiable_type": _unverifiable(prompt.prompt),
        "benchmark_problem": held_out.holds(words),
        "benchmark_ngram": held_out.overlaps(words),
        "sft_prompt": taught.equals(words),
        "pass_rate_measured": prompt.pass_rate is not None,
        "pass_rate": prompt.pass_rate,
        "prompt_words": len(prompt.prompt.split()),
        "tests": count_tests(prompt),
    }


def _verifier_facts(prompt: RLPrompt) -> RowFacts:
    """What the prompt's verifier says of its reference and of wrong answers.

    A model's judgment costs calls and is no rule that could be refuted here: what a set judged by
    a model must have is a reference and a verifier that a model has.
    """
    from longstride.rewards.verifiers import accepts

    if prompt.judge == "model":
        sound = bool(prompt.answer.strip()) and prompt.verifier in MODEL_VERIFIERS
        return {"answer_verifies": sound, "wrong_answer_accepted": None}
    wrong = ("", "zzz", f"{prompt.answer}x")
    return {
        "answer_verifies": bool(prompt.answer.strip()) and accepts(prompt, prompt.answer) is True,
        "wrong_answer_accepted": any(accepts(prompt, answer) is True for answer in wrong),
    }


def count_tests(prompt: RLPrompt) -> int | None:
    """How many tests judge a program: cases, asserts, or named tests; None: no program is asked."""
    from longstride.rewards.verifiers import CODE, SOFTWARE_ENGINEERING

    entry = prompt.entry
    if prompt.verifier == SOFTWARE_ENGINEERING:
        return len(entry.get("fail_to_pass", ())) + len(entry.get("pass_to_pass", ()))
    if prompt.verifier != CODE:
        return None
    tests = entry.get("cases", entry.get("tests", ()))
    return len(_ASSERT.findall(tests)) if isinstance(tests, str) else len(tests)


def _unverifiable(text: str) -> bool:
    """Proofs, true/false, multiple choice and several parts can be guessed or not be checked."""
    if _PROOF.search(text) or _TRUE_FALSE.search(text):
        return True
    return len(_CHOICES.findall(text)) >= 3 or len(_PARTS.findall(text)) >= 2


def _in_band(prompt: RLPrompt, recipe: Recipe) -> bool | None:
    if prompt.pass_rate is None:
        return None
    band = recipe.rl.curation
    return band.pass_rate_above < prompt.pass_rate < band.pass_rate_below


def _room(recipe: Recipe) -> int:
    """Tokens that the longest window of the ladder leaves for a prompt.

    A word is at least one token, so a prompt of more words than this cannot fit.
    """
    return recipe.extension[-1].window - recipe.ladder.windows[-1]


def _summary(families: Counter[str], subject: Subject) -> tuple[RowFacts, dict[str, list[str]]]:
    recipe = subject.recipe
    prompts = sum(families.values())
    weights = {family.name: family.weight for family in recipe.tasks}
    total = sum(weights.values())
    gaps = {
        name: families[name] / prompts - weights.get(name, 0.0) / total
        for name in {*families, *weights}
    }
    absent = sorted(name for name in weights if not families[name])
    unknown = sorted(name for name in families if name not in weights)
    manifest = subject.subject.manifest
    candidates = manifest.counts.get("candidates", recipe.rl.curation.candidates)
    facts: RowFacts = {
        "kept_share": prompts / max(candidates, prompts),
        "batch_coverage": prompts / recipe.rl.groups_per_batch,
        "family_share_gap": max(map(abs, gaps.values())),
        "absent_families": len(absent),
        "unknown_families": len(unknown),
    }
    return facts, {"absent_families": absent, "unknown_families": unknown}
