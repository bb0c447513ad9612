"""E4: RL prompts before the first round."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from longstride.data.measures.overlap import Problem, ProblemIndex
from longstride.data.measures.words import WordHasher
from longstride.quality.benchmark import NGRAM, benchmark_index
from longstride.quality.frame import Measured, RowFacts, require_rows
from longstride.quality.subject import Subject, reference_faults
from longstride.store.files import read_jsonl
from schemas.recipe import Recipe
from schemas.rows import ChatExample, RLPrompt

_PROOF: Final = re.compile(r"\b(?:prove|show) that\b|\bgive a proof\b", re.IGNORECASE)
_TRUE_FALSE: Final = re.compile(r"\btrue or false\b|\byes or no\b", re.IGNORECASE)
_CHOICES: Final = re.compile(r"^\s*\(?[A-D][).:]\s+\S", re.MULTILINE)
_PARTS: Final = re.compile(r"^\s*\(?(?:[a-d]|i{1,3})\)\s+\S", re.MULTILINE)


def measure(subject: Subject) -> Measured:
    """Measure RL prompts; the reference is the chat examples of SFT.

    Raises:
        DataError: A row cannot be read, there is none, or it names an unknown verifier.
        GateCouldNotRun: The chat examples or the benchmark's problems cannot be used.
    """
    path = subject.path / "prompts.jsonl"
    prompts = list(read_jsonl(path, RLPrompt))
    require_rows(prompts, path, "prompts")
    hasher = WordHasher()
    held_out = benchmark_index(subject.recipe, hasher)
    taught = _taught(subject, hasher)
    seen: set[bytes] = set()
    rows = []
    for prompt in prompts:
        row = _facts(prompt, held_out, taught, hasher)
        key = hasher.hashes(prompt.prompt).tobytes()
        row["duplicate"] = key in seen
        row["in_band"] = _in_band(prompt, subject.recipe)
        seen.add(key)
        rows.append(row)
    return Measured(rows, *_summary(prompts, subject))


def _taught(subject: Subject, hasher: WordHasher) -> ProblemIndex:
    """User turns of SFT."""
    with reference_faults("the chat examples"):
        turns = [
            Problem(example.id, example.family, message.content)
            for example in read_jsonl(subject.against / "examples.jsonl", ChatExample)
            for message in example.messages
            if message.role == "user"
        ]
    return ProblemIndex(turns, NGRAM, hasher)


def _facts(
    prompt: RLPrompt, held_out: ProblemIndex, taught: ProblemIndex, hasher: WordHasher
) -> RowFacts:
    from longstride.rewards.verifiers import accepts

    words = hasher.hashes(prompt.prompt)
    wrong = ("", "zzz", f"{prompt.answer}x")
    return {
        "id": prompt.id,
        "answer_verifies": bool(prompt.answer.strip()) and accepts(prompt, prompt.answer) is True,
        "wrong_answer_accepted": any(accepts(prompt, answer) is True for answer in wrong),
        "unverifiable_type": _unverifiable(prompt.prompt),
        "benchmark_problem": held_out.holds(words),
        "benchmark_ngram": held_out.overlaps(words),
        "sft_prompt": taught.equals(words),
        "pass_rate_measured": prompt.pass_rate is not None,
        "pass_rate": prompt.pass_rate,
        "prompt_words": len(words),
    }


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


def _summary(
    prompts: Sequence[RLPrompt], subject: Subject
) -> tuple[RowFacts, dict[str, list[str]]]:
    recipe = subject.recipe
    families = Counter(prompt.family for prompt in prompts)
    weights = {family.name: family.weight for family in recipe.tasks}
    total = sum(weights.values())
    gaps = {
        name: families[name] / len(prompts) - weights.get(name, 0.0) / total
        for name in {*families, *weights}
    }
    absent = sorted(name for name in weights if not families[name])
    unknown = sorted(name for name in families if name not in weights)
    manifest = subject.subject.manifest
    candidates = manifest.counts.get("candidates", recipe.rl.curation.candidates)
    facts: RowFacts = {
        "kept_share": len(prompts) / max(candidates, len(prompts)),
        "batch_coverage": len(prompts) / recipe.rl.groups_per_batch,
        "family_share_gap": max(map(abs, gaps.values())),
        "absent_families": len(absent),
        "unknown_families": len(unknown),
    }
    return facts, {"absent_families": absent, "unknown_families": unknown}
