"""E3: chat examples and their packed rows before supervised fine-tuning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Final

import numpy as np

from longstride.data.measures.overlap import ProblemIndex
from longstride.data.measures.words import WordHasher
from longstride.quality.benchmark import benchmark_index
from longstride.quality.frame import (
    Columns,
    Measured,
    MeasuredRows,
    RowFacts,
    RowWriter,
    Seen,
    Tally,
    require_rows,
)
from longstride.quality.packed_rows import Flags, Packed, base_facts, read_blocks
from longstride.quality.subject import Subject
from longstride.store.files import read_jsonl
from schemas.rows import ChatExample

_REFLECTION: Final = re.compile(
    r"\b(?:wait|however|recheck|re-check|alternatively|hmm|let me (?:check|verify|reconsider)|"
    r"on second thought|that is (?:wrong|not right))\b",
    re.IGNORECASE,
)
_IDENTITY: Final = re.compile(
    r"\b(?:as an? (?:ai|large) language model|"
    r"I(?: am|'m) (?:ChatGPT|Claude|Gemini|Qwen|DeepSeek|Llama)|"
    r"(?:trained|developed|created) by (?:OpenAI|Anthropic|Google|Meta|Alibaba|DeepSeek))\b",
    re.IGNORECASE,
)
_CUT_OFF: Final = re.compile(
    r"\b(?:(?:my )?knowledge cut-?off|(?:my|the) training data (?:ends|goes up to|only goes)|"
    r"as of my (?:last|latest) (?:update|training))\b",
    re.IGNORECASE,
)
_SPECIAL: Final = re.compile(r"<\|[a-z_]+\|>")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_PARAGRAPH: Final = re.compile(r"\n{2,}")
_REASONING: Final = ("reasoning", "code", "stem")

COLUMNS: Final[Columns] = {
    "id": "text",
    "domain": "text",
    "family": "text",
    "words": "count",
    "roles_alternate": "flag",
    "blank_turn": "flag",
    "think_well_formed": "flag",
    "empty_thinking": "flag",
    "marked": "flag",
    "reflects": "flag",
    "reflection_unmarked": "flag",
    "repeated_sentences": "number",
    "repeated_paragraphs": "number",
    "special_token_text": "flag",
    "foreign_identity": "flag",
    "knowledge_cut_off": "flag",
    "benchmark_problem": "flag",
    "benchmark_ngram": "flag",
    "duplicate": "flag",
    "times_packed": "count",
}


def measure(subject: Subject, writer: RowWriter) -> Measured:
    """Measure packed SFT rows; the reference is the chat examples that they were packed from.

    Rows of the frame are the examples; facts of packed rows are summed up.

    Raises:
        DataError: A file cannot be read, or holds no rows.
        GateCouldNotRun: The benchmark's problems cannot be made.
    """
    path = subject.against / "examples.jsonl"
    tally = Tally()
    places: Counter[str] = Counter()
    packed = _packed_summary(subject, places, tally)
    hasher = WordHasher()
    index = benchmark_index(subject.recipe, hasher)
    seen = Seen()
    for example in read_jsonl(path, ChatExample):
        row = _example_facts(example, index, hasher)
        question = hasher.hashes(_of(example, "user"))
        row["duplicate"] = seen.again(sha256(question.tobytes()).digest())
        row["times_packed"] = abs(places[example.id])
        # A name that an example has claimed is kept as a negative count.
        places[example.id] = -abs(places[example.id])
        writer.append(row)
    require_rows(writer.count, path, "examples")
    rows = writer.finish()
    for name, count in places.items():
        tally.flag("foreign_documents", name, count > 0)
    summary = {
        **_example_summary(rows, subject),
        **packed,
        "foreign_documents": tally.counts["foreign_documents"],
    }
    return Measured(rows, summary, tally.culprits)


def _of(example: ChatExample, role: str) -> str:
    return "\n".join(m.content for m in example.messages if m.role == role)


def _example_facts(example: ChatExample, index: ProblemIndex, hasher: WordHasher) -> RowFacts:
    from longstride.tokens.chat import parse_answer

    answers = [m.content for m in example.messages if m.role == "assistant"]
    said = "\n".join(answers)
    question = hasher.hashes(_of(example, "user"))
    parsed = [parse_answer(text) for text in answers]
    reflects = _REFLECTION.search(said) is not None
    return {
        "id": example.id,
        "domain": example.domain,
        "family": example.family,
        "words": len(said.split()),
        "roles_alternate": _alternate([message.role for message in example.messages]),
        "blank_turn": any(not message.content.strip() for message in example.messages),
        "think_well_formed": bool(parsed) and all(part.well_formed for part in parsed),
        "empty_thinking": any(p.thinking is not None and not p.thinking.strip() for p in parsed),
        "marked": example.reflection,
        "reflects": reflects,
        "reflection_unmarked": example.reflection and not reflects,
        "repeated_sentences": _repeated(_SENTENCE, said),
        "repeated_paragraphs": _repeated(_PARAGRAPH, said),
        "special_token_text": any(_SPECIAL.search(m.content) for m in example.messages),
        "foreign_identity": _IDENTITY.search(said) is not None,
        "knowledge_cut_off": _CUT_OFF.search(said) is not None,
        "benchmark_problem": index.holds(question),
        "benchmark_ngram": index.overlaps(question),
    }


def _alternate(roles: Sequence[str]) -> bool:
    turns = roles[1:] if roles[:1] == ["system"] else roles
    return (
        len(turns) >= 2
        and len(turns) % 2 == 0
        and all(role == ("user", "assistant")[i % 2] for i, role in enumerate(turns))
    )


def _repeated(boundary: re.Pattern[str], text: str) -> float:
    """Share of sentences or paragraphs that repeat an earlier one of the same answer."""
    parts = [part.strip() for part in boundary.split(text) if len(part.strip()) > 20]
    return 1.0 - len(set(parts)) / len(parts) if parts else 0.0


def _example_summary(rows: MeasuredRows, subject: Subject) -> RowFacts:
    import polars as pl

    sft = subject.recipe.sft
    found: dict[str, Any] = rows.facts(
        reflects=pl.col("reflects").mean(),
        marked=pl.col("marked").mean(),
        reasoning=pl.col("domain").is_in(_REASONING).mean(),
    )
    return {
        "reflection_share": found["reflects"],
        "reflection_gap": found["marked"] - sft.reflection_share,
        "reasoning_share": found["reasoning"],
        "examples_ratio": rows.count / sft.examples,
    }


def _packed_summary(subject: Subject, places: Counter[str], tally: Tally) -> RowFacts:
    ids = _token_ids(subject)
    vocabulary = subject.recipe.model.vocab_size
    seen = Seen()
    padding = total = window = 0
    for packed in read_blocks(subject.path):
        window = packed.window
        total += packed.tokens_NT.size
        padding += sum(record.padding_tokens for record in packed.records)
        places.update(name for record in packed.records for name in record.documents)
        _tally_block(packed, base_facts(packed, vocabulary, seen), ids, tally)
    recorded = subject.subject.manifest.parents.get("chat")
    reference = subject.reference
    return {
        **{name: tally.counts[name] for name in _PACKED_COUNTS},
        "window_ratio": window / subject.recipe.sft.window,
        "padding_share": padding / total,
        "packed_from_examples": reference is None or recorded in (None, reference.digest),
    }


def _tally_block(packed: Packed, facts: list[RowFacts], ids: dict[str, int], tally: Tally) -> None:
    wrong_prompt, wrong_answer, stopless = _mask_faults(packed, ids)
    unclosed = _unclosed_turns(packed, ids)
    for number, row in enumerate(facts):
        name = str(row["id"])
        malformed = not (row["segments_ordered"] and row["positions_restart"])
        tally.flag("malformed_rows", name, malformed or not row["mask_binary"])
        tally.flag("record_disagrees", name, bool(row["record_disagrees"]))
        tally.flag("outside_vocabulary", name, bool(row["token_outside_vocabulary"]))
        tally.flag("targets_on_padding", name, row["targets_on_padding"] != 0)
        tally.flag("trained_prompt_rows", name, bool(wrong_prompt[number]))
        tally.flag("untrained_answer_rows", name, bool(wrong_answer[number]))
        tally.flag("untrained_stop_rows", name, bool(stopless[number]))
        tally.flag("unclosed_turn_rows", name, bool(unclosed[number]))


_PACKED_COUNTS: Final = (
    "malformed_rows",
    "record_disagrees",
    "outside_vocabulary",
    "targets_on_padding",
    "trained_prompt_rows",
    "untrained_answer_rows",
    "untrained_stop_rows",
    "unclosed_turn_rows",
)


def _token_ids(subject: Subject) -> dict[str, int]:
    """Ids of the special tokens of a turn, which the packer recorded."""
    from longstride.tokens.tokenizer import ASSISTANT, END, SPECIALS, SYSTEM, USER

    counts = subject.subject.manifest.counts
    return {
        name: counts.get(f"token_id/{name}", SPECIALS.index(name))
        for name in (SYSTEM, USER, ASSISTANT, END)
    }


def _unclosed_turns(packed: Packed, ids: dict[str, int]) -> Flags:
    """Rows with a turn that follows another which was not closed.

    Every turn is closed before the next begins, so that earlier turns are rendered the same
    whatever comes later.
    """
    from longstride.tokens.tokenizer import ASSISTANT, END, SYSTEM, USER

    is_header = np.isin(packed.tokens_NT, [ids[SYSTEM], ids[USER], ids[ASSISTANT]])
    inside = is_header & packed.real_NT & ~packed.starts_NT
    closed = packed.tokens_NT[:, :-1] == ids[END]
    return np.asarray((inside[:, 1:] & ~closed).any(axis=1))


def _mask_faults(packed: Packed, ids: dict[str, int]) -> tuple[Flags, Flags, Flags]:
    """Rows with a trained prompt token, an untrained answer token, an untrained end of turn.

    A token belongs to the turn of the last header before it; headers themselves are never trained.
    """
    from longstride.tokens.tokenizer import ASSISTANT, END, SYSTEM, USER

    headers = [ids[SYSTEM], ids[USER], ids[ASSISTANT]]
    tokens, trained = packed.tokens_NT, packed.mask_NT != 0
    is_header = np.isin(tokens, headers) & packed.real_NT
    index = np.broadcast_to(np.arange(packed.window), tokens.shape)
    last = np.maximum.accumulate(np.where(is_header, index, 0), axis=1)
    of_assistant = np.take_along_axis(tokens, last, axis=1) == ids[ASSISTANT]
    answer = of_assistant & ~is_header & packed.real_NT
    stop = answer & (tokens == ids[END])
    return (
        np.asarray((trained & ~answer & packed.real_NT).any(axis=1)),
        np.asarray((~trained & answer & ~stop).any(axis=1)),
        np.asarray((~trained & stop).any(axis=1)),
    )
