"""The pretraining corpus: read, normalise, split, de-duplicate, mix to the target shares."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field

from longstride.data.readers import read_documents
from longstride.data.text import digest, normalise, order_key, split_lines
from longstride.errors import DataError
from longstride.store.artifacts import publish
from longstride.store.files import write_json, write_jsonl
from schemas.artifacts import ArtifactManifest
from schemas.base import Contract
from schemas.data import DataConfig, FileSource, Source
from schemas.recipe import Recipe
from schemas.rows import Document, Domain

Progress = Callable[[int, int], None]
"""Called with (characters so far, characters in all)."""

DOCUMENTS = "documents.jsonl"
QUARANTINE = "quarantine.jsonl"
SUMMARY = "summary.json"


class Quarantined(Contract):
    """A row that could not be used."""

    source: str
    """Source in the recipe."""
    where: str
    """File and row."""
    reason: str
    """Why, in one sentence."""


class Amount(Contract):
    """Documents and characters."""

    documents: int = Field(ge=0)
    """Number of documents."""
    characters: int = Field(ge=0)
    """Number of characters."""


class CorpusSummary(Contract):
    """What a corpus is made of, and what became of the rest."""

    kept: Amount
    """The corpus."""
    by_domain: dict[str, Amount]
    """The corpus by domain."""
    by_source: dict[str, Amount]
    """The corpus by source."""
    target_shares: dict[str, float]
    """Shares of characters that were asked for."""
    shares: dict[str, float]
    """Shares of characters that came out."""
    rows_read: dict[str, int]
    """Rows by source, the quarantined ones included."""
    pieces: int = Field(ge=0)
    """Documents after splitting, before anything was dropped."""
    dropped: dict[str, int]
    """Documents dropped by reason: `short`, `duplicate`, `not_sampled`, `rest_of_cut`."""
    quarantined: int = Field(ge=0)
    """Rows that could not be used."""


@dataclass
class _Intake:
    """What the reading of all sources shares: digests seen, rejects, counts."""

    config: DataConfig
    seed: int
    seen: set[str] = field(default_factory=set)
    quarantined: list[Quarantined] = field(default_factory=list)
    rows: Counter[str] = field(default_factory=Counter)
    dropped: Counter[str] = field(default_factory=Counter)
    pieces: int = 0

    def quarantine_for(self, source: Source) -> Callable[[str, str], None]:
        def quarantine(where: str, reason: str) -> None:
            self.rows[source.name] += 1
            self.quarantined.append(Quarantined(source=source.name, where=where, reason=reason))

        return quarantine

    def usable(self, row: Document) -> list[Document]:
        """The pieces of one row that are long enough and new."""
        texts = list(split_lines(normalise(row.text), self.config.document_characters))
        usable = []
        for number, text in enumerate(texts):
            self.pieces += 1
            key = digest(text)
            if len(text.strip()) < self.config.minimum_characters:
                self.dropped["short"] += 1
            elif key in self.seen:
                self.dropped["duplicate"] += 1
            else:
                self.seen.add(key)
                name = row.id if len(texts) == 1 else f"{row.id}#{number:04d}"
                usable.append(row.model_copy(update={"id": name, "text": text, "sha256": key}))
        return usable


def build_corpus(recipe: Recipe, out: Path, progress: Progress | None = None) -> ArtifactManifest:
    """Write the corpus of a recipe: documents, quarantine, summary, manifest.

    The shares of characters meet `recipe.data.mixture` to within one shortest document a domain.
    The same seed on the same interpreter and packages gives the same bytes.

    Raises:
        DataError: A source yields nothing, or a domain has less text than its share needs.
    """
    out.mkdir(parents=True, exist_ok=True)
    intake = _Intake(recipe.data, recipe.seed)
    kept: list[Document] = []
    for domain, share in sorted(recipe.data.mixture.items()):
        if share > 0:
            need = round(share * recipe.data.characters)
            kept += _fill(recipe, intake, domain, need)
            if progress is not None:
                progress(sum(len(d.text) for d in kept), recipe.data.characters)
    kept.sort(key=lambda document: order_key(recipe.seed, "corpus", document.id))
    write_jsonl(out / DOCUMENTS, kept)
    write_jsonl(out / QUARANTINE, intake.quarantined)
    summary = _summarise(recipe.data, intake, kept)
    write_json(out / SUMMARY, summary)
    return publish(
        out,
        "documents",
        "corpus",
        recipe_digest=recipe.digest(),
        counts={
            "documents": summary.kept.documents,
            "characters": summary.kept.characters,
            "quarantined": summary.quarantined,
            "rows_read": sum(summary.rows_read.values()),
            **{f"dropped_{reason}": count for reason, count in summary.dropped.items()},
        },
    )


def _fill(recipe: Recipe, intake: _Intake, domain: Domain, need: int) -> list[Document]:
    """Documents of one domain with `need` characters, sampled by row, order by content."""
    rows: list[list[Document]] = []
    for source in recipe.data.sources:
        if source.domain == domain:
            rows += _read_source(recipe, intake, source, need)
    available = sum(len(document.text) for row in rows for document in row)
    if available < need:
        raise DataError(_shortage(recipe, intake, domain, available, need))
    rows.sort(key=lambda row: order_key(intake.seed, "mixture", row[0].id))
    return list(_take(rows, intake, need))


def _read_source(
    recipe: Recipe, intake: _Intake, source: Source, need: int
) -> Iterator[list[Document]]:
    """Usable documents by row.

    Text of the user's own is read to its end, so that every row of it is checked; what ships with
    packages is read only until the share of the domain is met.
    """
    documents = read_documents(
        source, seed=recipe.seed, tasks=recipe.tasks, quarantine=intake.quarantine_for(source)
    )
    characters = 0
    for row in documents:
        intake.rows[source.name] += 1
        usable = intake.usable(row)
        if usable:
            characters += sum(len(document.text) for document in usable)
            yield usable
        if characters >= need and not isinstance(source, FileSource):
            return
    if not characters:
        raise DataError(_nothing(intake, source))


def _nothing(intake: _Intake, source: Source) -> str:
    bad = [q for q in intake.quarantined if q.source == source.name]
    if bad:
        return (
            f"source {source.name!r} yields no document: all {len(bad)} rows are unusable, first "
            f"{bad[0].where}: {bad[0].reason}"
        )
    return (
        f"source {source.name!r} yields no document of at least {intake.config.minimum_characters} "
        f"characters that no earlier source has ({intake.rows[source.name]} rows read); lower "
        "data.minimum_characters or point the source elsewhere"
    )


def _shortage(recipe: Recipe, intake: _Intake, domain: Domain, available: int, need: int) -> str:
    names = [s.name for s in recipe.data.sources if s.domain == domain]
    bad = [q for q in intake.quarantined if q.source in names]
    first = f" ({len(bad)} rows unusable, first {bad[0].where}: {bad[0].reason})" if bad else ""
    return (
        f"domain {domain!r} needs {need:,} characters (share {recipe.data.mixture[domain]:g} of "
        f"{recipe.data.characters:,}) but its sources {names} have {available:,}{first}; add a "
        "source, lower the share, or lower data.characters"
    )


def _take(rows: list[list[Document]], intake: _Intake, need: int) -> Iterator[Document]:
    """Whole rows in order until the characters are there; the last document is cut to measure."""
    for row in rows:
        for document in row:
            if need <= 0:
                intake.dropped["not_sampled"] += 1
                continue
            text = document.text
            if len(text) > need:
                text = next(split_lines(text, max(need, intake.config.minimum_characters)))
                intake.dropped["rest_of_cut"] += 1
                document = document.model_copy(update={"text": text, "sha256": digest(text)})
                need = 0
            need -= len(text)
            yield document


def _amounts(documents: Iterable[Document], key: Callable[[Document], str]) -> dict[str, Amount]:
    counts: Counter[str] = Counter()
    characters: Counter[str] = Counter()
    for document in documents:
        counts[key(document)] += 1
        characters[key(document)] += len(document.text)
    return {k: Amount(documents=counts[k], characters=characters[k]) for k in sorted(counts)}


def _summarise(config: DataConfig, intake: _Intake, kept: list[Document]) -> CorpusSummary:
    by_domain = _amounts(kept, lambda document: document.domain)
    characters = sum(len(document.text) for document in kept)
    return CorpusSummary(
        kept=Amount(documents=len(kept), characters=characters),
        by_domain=by_domain,
        by_source=_amounts(kept, lambda document: document.source),
        target_shares={str(domain): share for domain, share in sorted(config.mixture.items())},
        shares={domain: amount.characters / characters for domain, amount in by_domain.items()},
        rows_read=dict(sorted(intake.rows.items())),
        pieces=intake.pieces,
        dropped=dict(sorted(intake.dropped.items())),
        quarantined=len(intake.quarantined),
    )
