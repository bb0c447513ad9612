"""E1: the corpus before continual pretraining."""

from __future__ import annotations

import hashlib
import math
import re
import unicodedata
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from longstride.data.measures.language import UNDETERMINED, language_of
from longstride.data.measures.overlap import ProblemIndex
from longstride.data.measures.prose import NAMES, prose_facts
from longstride.data.measures.secrets import email_count, public_ip_count, secret_count
from longstride.data.measures.words import WordHasher, split_words
from longstride.errors import DataError
from longstride.quality.benchmark import benchmark_index
from longstride.quality.frame import (
    Columns,
    Measured,
    RowFacts,
    RowWriter,
    Seen,
    Tally,
    require_rows,
)
from longstride.quality.residue import Residue
from longstride.quality.subject import Subject, reference_faults
from longstride.store.files import read_jsonl
from schemas.recipe import Recipe
from schemas.rows import Document, Domain

PROSE: Final = frozenset({"stem", "book", "web"})
"""Domains of running text; code and generated problems break rules of prose honestly."""
REASONING_RELATED: Final = frozenset({"stem", "code", "book", "reasoning"})
LANGUAGES: Final = frozenset({"en"})
"""Languages of running text that the recipes here train on."""
_SAMPLED_BYTES: Final = 60_000
_SPACES: Final = re.compile(r"\s+")
_COUNTS: Final = frozenset({"words", "stop_words"})

COLUMNS: Final[Columns] = {
    "id": "text",
    "domain": "text",
    "characters": "count",
    "blank": "flag",
    "control": "flag",
    "replacement": "flag",
    "duplicate": "flag",
    "near_duplicate": "flag",
    "secrets": "count",
    "emails": "count",
    "public_ips": "count",
    "holds_benchmark_problem": "flag",
    "benchmark_ngram": "flag",
    "foreign_language": "flag",
    "language_probability": "number",
    **{name: "count" if name in _COUNTS else "number" for name in NAMES},
}


def measure(subject: Subject, writer: RowWriter) -> Measured:
    """Measure a documents artifact; the reference is the tokenizer.

    Documents are read one at a time; what stays in memory is 8 bytes a document for exact
    duplicates, and near-duplicates lie on disk until they are compared.

    Raises:
        DataError: A row cannot be read, or there is none.
        GateCouldNotRun: The tokenizer or the benchmark's problems cannot be used.
    """
    import polars as pl

    path = subject.path / "documents.jsonl"
    meter = _DocumentMeter(subject.recipe)
    tokens = _TokenMeter(subject, path)
    tally = Tally()
    characters: Counter[str] = Counter()
    with Residue(path, writer.scratch, meter.hasher) as residue:
        for number, document in enumerate(read_jsonl(path, Document)):
            row = meter.facts(document)
            if document.domain != "reasoning":
                # Generated problems repeat their template by design.
                residue.add(number, meter.hasher.hash_words(meter.words))
            characters[document.domain] += len(document.text)
            tokens.see(document, tally)
            limit = subject.recipe.data.document_characters
            tally.flag("overlong_share", document.id, len(document.text) > limit)
            writer.append(row)
        require_rows(writer.count, path, "documents")
        rows = writer.finish({"near_duplicate": residue.find()})
    near = rows.facts(share=pl.col("near_duplicate").mean())["share"]
    tally.culprits["near_duplicate_share"] = rows.ids(pl.col("near_duplicate")) if near else []
    summary: RowFacts = {
        "documents": rows.count,
        "near_duplicate_share": near,
        **_plan_facts(sum(characters.values()), rows.count, subject, tally),
        **mixture_facts(characters, subject.recipe),
        **tokens.facts(tally),
    }
    return Measured(rows, summary, tally.culprits)


class _DocumentMeter:
    """Facts of one document after another."""

    def __init__(self, recipe: Recipe) -> None:
        self.hasher = WordHasher()
        self.words: list[str] = []
        self._index: ProblemIndex = benchmark_index(recipe, self.hasher)
        self._seen = Seen()

    def facts(self, document: Document) -> RowFacts:
        text, generated = document.text, document.domain == "reasoning"
        self.words = split_words(text)
        words_W = self.hasher.hash_words(self.words)
        prose = document.domain in PROSE
        row: RowFacts = {
            "id": document.id,
            "domain": document.domain,
            "characters": len(text),
            "blank": not text.strip(),
            "control": "\0" in text or bool(_suspects(text)),
            "replacement": "\ufffd" in text,
            "duplicate": self._seen.again(_normalised_digest(text)),
            "near_duplicate": None if generated else False,
            "secrets": secret_count(text),
            "emails": email_count(text),
            "public_ips": public_ip_count(text),
            "holds_benchmark_problem": self._index.holds(words_W),
            "benchmark_ngram": None if generated else self._index.overlaps(words_W),
            "foreign_language": None,
            "language_probability": None,
        }
        if prose:
            code, probability = language_of(text)
            if code != UNDETERMINED:
                row["foreign_language"] = code not in LANGUAGES
                row["language_probability"] = probability
            row.update(prose_facts(text, self.words, words_W))
        else:
            row.update(dict.fromkeys(NAMES))
        return row


def _suspects(text: str) -> str:
    """Characters that are lone surrogates; empty for nearly every text, found at C speed."""
    return "" if text.isascii() else re.sub(r"[^\ud800-\udfff]", "", text)


def _normalised_digest(text: str) -> bytes:
    plain = _SPACES.sub(" ", unicodedata.normalize("NFC", text)).strip().casefold()
    return hashlib.sha256(plain.encode("utf-8", "surrogatepass")).digest()


def _plan_facts(characters: int, documents: int, subject: Subject, tally: Tally) -> RowFacts:
    declared = subject.subject.manifest.counts.get("documents", documents)
    if declared != documents:
        raise DataError(
            f"{subject.path / 'documents.jsonl'} holds {documents} rows, its manifest "
            f"declares {declared}; rerun the corpus step"
        )
    quarantined, read = _quarantine(subject)
    return {
        "characters_ratio": characters / subject.recipe.data.characters,
        "overlong_share": tally.share("overlong_share", documents),
        "quarantine_share": quarantined / (read or quarantined + documents),
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


class _TokenMeter:
    """What the tokenizer makes of a sample spread evenly over the corpus."""

    def __init__(self, subject: Subject, path: Path) -> None:
        from longstride.tokens.tokenizer import Tokenizer

        with reference_faults("the tokenizer"):
            self._tokenizer = Tokenizer.load(subject.against)
        self._vocabulary = subject.recipe.model.vocab_size
        size = path.stat().st_size if path.is_file() else 0
        self._stride = max(1, -(-size // _SAMPLED_BYTES))
        self._seen = self._sampled = self._tokens = self._characters = self._unknown = 0

    def see(self, document: Document, tally: Tally) -> None:
        chosen = self._seen % self._stride == 0
        self._seen += 1
        if not chosen:
            return
        ids = self._tokenizer.encode(document.text)
        self._sampled += 1
        self._tokens += len(ids)
        self._characters += len(document.text)
        outside = sum(not 0 <= token < self._vocabulary for token in ids)
        self._unknown += outside
        lost = self._tokenizer.decode(ids) != document.text
        tally.flag("untokenizable_share", document.id, lost)
        tally.flag("unknown_token_share", document.id, outside > 0)

    def facts(self, tally: Tally) -> RowFacts:
        return {
            "untokenizable_share": tally.share("untokenizable_share", self._sampled),
            "unknown_token_share": self._unknown / max(1, self._tokens),
            "characters_per_token": self._characters / max(1, self._tokens),
        }
