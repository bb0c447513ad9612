"""E1: the corpus before continual pretraining."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from longstride.data.measures.minhash import near_duplicates
from longstride.data.measures.prose import NAMES, prose_facts
from longstride.data.measures.secrets import email_count, public_ip_count, secret_count
from longstride.data.measures.words import Hashes, WordHasher, split_words
from longstride.errors import DataError
from longstride.quality.benchmark import benchmark_index
from longstride.quality.frame import Measured, RowFacts, Tally, require_rows
from longstride.quality.subject import Subject, reference_faults
from longstride.store.files import read_jsonl
from schemas.recipe import Recipe
from schemas.rows import Document, Domain

PROSE: Final = frozenset({"stem", "book", "web"})
"""Domains of running text; code and generated problems break rules of prose honestly."""
REASONING_RELATED: Final = frozenset({"stem", "code", "book", "reasoning"})
_SAMPLED_CHARACTERS: Final = 60_000
_SPACES: Final = re.compile(r"\s+")


def measure(subject: Subject) -> Measured:
    """Measure a documents artifact; the reference is the tokenizer.

    Raises:
        DataError: A row cannot be read, or there is none.
        GateCouldNotRun: The tokenizer or the benchmark's problems cannot be used.
    """
    path = subject.path / "documents.jsonl"
    documents = list(read_jsonl(path, Document))
    require_rows(documents, path, "documents")
    hasher = WordHasher()
    words = [split_words(document.text) for document in documents]
    tally = Tally()
    rows = _rows(documents, words, subject.recipe, hasher)
    summary: RowFacts = {
        "documents": len(documents),
        **_plan_facts(documents, subject, tally),
        **mixture_facts(_characters(documents), subject.recipe),
        **_token_facts(documents, subject, tally),
    }
    return Measured(rows, summary, tally.culprits)


def _rows(
    documents: Sequence[Document],
    words: Sequence[Sequence[str]],
    recipe: Recipe,
    hasher: WordHasher,
) -> list[RowFacts]:
    index = benchmark_index(recipe, hasher)
    hashes = [hasher.hash_words(chosen) for chosen in words]
    near = _near(documents, hashes)
    seen: set[bytes] = set()
    rows: list[RowFacts] = []
    for number, (document, words_W) in enumerate(zip(documents, hashes, strict=True)):
        text, generated = document.text, document.domain == "reasoning"
        key = _normalised_digest(text)
        row: RowFacts = {
            "id": document.id,
            "characters": len(text),
            "blank": not text.strip(),
            "control": "\0" in text or any(0xD800 <= ord(c) <= 0xDFFF for c in _suspects(text)),
            "replacement": "\ufffd" in text,
            "duplicate": key in seen,
            # Generated problems repeat their template by design.
            "near_duplicate": None if generated else number in near,
            "secrets": secret_count(text),
            "emails": email_count(text),
            "public_ips": public_ip_count(text),
            "holds_benchmark_problem": index.holds(words_W),
            "benchmark_ngram": None if generated else index.overlaps(words_W),
        }
        prose = document.domain in PROSE
        row.update(prose_facts(text, words[number], words_W) if prose else dict.fromkeys(NAMES))
        seen.add(key)
        rows.append(row)
    return rows


def _suspects(text: str) -> str:
    """Characters that are lone surrogates; empty for nearly every text, found at C speed."""
    return "" if text.isascii() else re.sub(r"[^\ud800-\udfff]", "", text)


def _near(documents: Sequence[Document], hashes: Sequence[Hashes]) -> set[int]:
    chosen = [i for i, document in enumerate(documents) if document.domain != "reasoning"]
    return {chosen[i] for i in near_duplicates([hashes[i] for i in chosen])}


def _normalised_digest(text: str) -> bytes:
    plain = _SPACES.sub(" ", unicodedata.normalize("NFC", text)).strip().casefold()
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()


def _characters(documents: Sequence[Document]) -> Counter[str]:
    characters: Counter[str] = Counter()
    for document in documents:
        characters[document.domain] += len(document.text)
    return characters


def _plan_facts(documents: Sequence[Document], subject: Subject, tally: Tally) -> RowFacts:
    data = subject.recipe.data
    characters = sum(len(document.text) for document in documents)
    for document in documents:
        tally.flag("overlong_share", document.id, len(document.text) > data.document_characters)
    manifest = subject.subject.manifest
    declared = manifest.counts.get("documents", len(documents))
    if declared != len(documents):
        raise DataError(
            f"{subject.path / 'documents.jsonl'} holds {len(documents)} rows, its manifest "
            f"declares {declared}; rerun the corpus step"
        )
    quarantined, read = _quarantine(subject)
    return {
        "characters_ratio": characters / data.characters,
        "overlong_share": tally.share("overlong_share", len(documents)),
        "quarantine_share": quarantined / (read or quarantined + len(documents)),
    }


def _quarantine(subject: Subject) -> tuple[int, int]:
    """Rows set aside when reading, and rows read in all, these included (0: not recorded)."""
    path = subject.path / "quarantine.jsonl"
    if not path.is_file():
        return 0, 0
    with path.open("rb") as stream:
        count = sum(1 for line in stream if line.strip())
    return count, subject.subject.manifest.counts.get("rows_read", 0)


def mixture_facts(
    amounts: Counter[str], recipe: Recipe, mixture: Mapping[Domain, float] | None = None
) -> RowFacts:
    """Distance of a mixture from its target: KL(actual || target) in nats, and shares.

    The target is `mixture`, else the recipe's `data.mixture`. KL is infinite when a domain occurs
    that the target gives no share.
    """
    total = sum(amounts.values())
    target = recipe.data.mixture if mixture is None else mixture
    divergence = 0.0
    for domain, amount in amounts.items():
        if amount:
            wanted = target.get(domain, 0.0)  # type: ignore[call-overload]
            share = amount / total
            divergence += share * math.log(share / wanted) if wanted > 0 else math.inf
    related = sum(amounts[domain] for domain in REASONING_RELATED) / total
    return {
        "mixture_kl": divergence,
        "reasoning_related_share": related,
        "reasoning_related_gap": related - recipe.data.reasoning_related_share,
    }


def _token_facts(documents: Sequence[Document], subject: Subject, tally: Tally) -> RowFacts:
    """What the tokenizer makes of a sample spread evenly over the corpus."""
    from longstride.tokens.tokenizer import Tokenizer

    with reference_faults("the tokenizer"):
        tokenizer = Tokenizer.load(subject.against)
    total = sum(len(document.text) for document in documents)
    stride = max(1, -(-total // _SAMPLED_CHARACTERS))
    sample = documents[::stride]
    tokens = characters = 0
    for document in sample:
        ids = tokenizer.encode(document.text)
        tokens += len(ids)
        characters += len(document.text)
        outside = any(not 0 <= token < subject.recipe.model.vocab_size for token in ids)
        lost = tokenizer.decode(ids) != document.text
        tally.flag("untokenizable_share", document.id, outside or lost)
    return {
        "untokenizable_share": tally.share("untokenizable_share", len(sample)),
        "characters_per_token": characters / max(1, tokens),
    }
