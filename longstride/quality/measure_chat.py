"""E3: chat examples and their packed rows before supervised fine-tuning."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

import numpy as np

from longstride.data.measures.overlap import ProblemIndex
from longstride.data.measures.words import WordHasher, split_words
from longstride.quality.benchmark import benchmark_index
from longstride.quality.frame import Measured, RowFacts, Tally, require_rows
from longstride.quality.packed_rows import Flags, Packed, base_facts, read_packed
from longstride.quality.subject import Subject
from longstride.store.files import read_jsonl
from schemas.rows import ChatExample

_REFLECTION: Final = re.compile(
    r"\b(?:wait|however|recheck|re-check|alternatively|hmm|let me (?:check|verify|reconsider)|"
    r"on second thought|that is (?:wrong|not right))\b",
    re.IGNORECASE,
)
_IDENTITY: Final = re.compile(
    r"\b(?:as an? (?:ai|large) language model|(?:my )?knowledge cut-?off|"
    r"I(?: am|'m) (?:ChatGPT|Claude|Gemini|Qwen|DeepSeek|Llama)|"
    r"trained by (?:OpenAI|Anthropic|Google|Meta))\b",
    re.IGNORECASE,
)
_SPECIAL: Final = re.compile(r"<\|[a-z_]+\|>")
_SENTENCE: Final = re.compile(r"(?<=[.!?])\s+|\n+")
_REASONING: Final = ("reasoning", "code", "stem")


def measure(subject: Subject) -> Measured:
    """Measure packed SFT rows; the reference is the chat examples that they were packed from.

    Rows of the frame are the examples; facts of packed rows are summed up.

    Raises:
        DataError: A file cannot be read, or holds no rows.
        GateCouldNotRun: The benchmark's problems cannot be made.
    """
    path = subject.against / "examples.jsonl"
    examples = list(read_jsonl(path, ChatExample))
    require_rows(examples, path, "examples")
    packed = read_packed(subject.path)
    hasher = WordHasher()
    index = benchmark_index(subject.recipe, hasher)
    places = Counter(name for record in packed.records for name in record.documents)
    seen: set[tuple[str, ...]] = set()
    rows = []
    for example in examples:
        row = _example_facts(example, index, hasher)
        question = tuple(split_words(_of(example, "user")))
        row["duplicate"] = question in seen
        row["times_packed"] = places[example.id]
        seen.add(question)
        rows.append(row)
    tally = Tally()
    summary = {
        **_example_summary(examples, rows, subject),
        **_packed_summary(packed, subject, tally),
    }
    known = {example.id for example in examples}
    foreign = [name for name in places if name not in known]
    summary["foreign_documents"] = len(foreign)
    tally.culprits["foreign_documents"] = foreign
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
        "roles_alternate": _alternate([message.role for message in example.messages]),
        "blank_turn": any(not message.content.strip() for message in example.messages),
        "think_well_formed": bool(parsed) and all(part.well_formed for part in parsed),
        "empty_thinking": any(p.thinking is not None and not p.thinking.strip() for p in parsed),
        "reflects": reflects,
        "reflection_unmarked": example.reflection and not reflects,
        "repeated_sentences": _repeated(said),
        "special_token_text": any(_SPECIAL.search(m.content) for m in example.messages),
        "foreign_identity": _IDENTITY.search(said) is not None,
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


def _repeated(text: str) -> float:
    """Share of sentences that repeat an earlier one of the same answer."""
    sentences = [part.strip() for part in _SENTENCE.split(text) if len(part.strip()) > 20]
    return 1.0 - len(set(sentences)) / len(sentences) if sentences else 0.0


def _example_summary(
    examples: Sequence[ChatExample], rows: Sequence[RowFacts], subject: Subject
) -> RowFacts:
    sft = subject.recipe.sft
    total = len(examples)
    share = sum(bool(row["reflects"]) for row in rows) / total
    marked = sum(example.reflection for example in examples) / total
    return {
        "reflection_share": share,
        "reflection_gap": marked - sft.reflection_share,
        "reasoning_share": sum(e.domain in _REASONING for e in examples) / total,
        "examples_ratio": total / sft.examples,
    }


def _packed_summary(packed: Packed, subject: Subject, tally: Tally) -> RowFacts:
    facts = base_facts(packed, subject.recipe.model.vocab_size)
    wrong_prompt, wrong_answer, stopless = _mask_faults(packed, _token_ids(subject))
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
    recorded = subject.subject.manifest.parents.get("chat")
    reference = subject.reference
    padding = sum(record.padding_tokens for record in packed.records)
    return {
        **{name: tally.counts[name] for name in _PACKED_COUNTS},
        "window_ratio": packed.window / subject.recipe.sft.window,
        "padding_share": padding / packed.tokens_NT.size,
        "packed_from_examples": reference is None or recorded in (None, reference.digest),
    }


_PACKED_COUNTS: Final = (
    "malformed_rows",
    "record_disagrees",
    "outside_vocabulary",
    "targets_on_padding",
    "trained_prompt_rows",
    "untrained_answer_rows",
    "untrained_stop_rows",
)


def _token_ids(subject: Subject) -> dict[str, int]:
    """Ids of the special tokens of a turn, which the packer recorded."""
    from longstride.tokens.tokenizer import ASSISTANT, END, SPECIALS, SYSTEM, USER

    counts = subject.subject.manifest.counts
    return {
        name: counts.get(f"token_id/{name}", SPECIALS.index(name))
        for name in (SYSTEM, USER, ASSISTANT, END)
    }


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
        np.asarray((~trained & answer).any(axis=1)),
        np.asarray((~trained & stop).any(axis=1)),
    )
