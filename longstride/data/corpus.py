"""The pretraining corpus: read, clean, split, de-duplicate, mix to the target shares.

Rows stream through: texts go to a spool on disk, and memory holds some 80 bytes a document.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from longstride.data.cleaning import Cleaner, held_out_problems
from longstride.data.corpus_summary import Amount, CorpusSummary, Tally
from longstride.data.intake import Dropped, Intake, Quarantined
from longstride.data.readers import read_documents
from longstride.data.spool import Indices
from longstride.data.text import digest, split_lines
from longstride.errors import DataError
from longstride.store.artifacts import publish
from longstride.store.files import atomic_write, write_json, write_jsonl
from schemas.artifacts import ArtifactManifest
from schemas.data import FileSource, Source
from schemas.recipe import Recipe
from schemas.rows import Document, Domain

Progress = Callable[[int, int], None]
"""Called with (characters so far, characters in all)."""

DOCUMENTS = "documents.jsonl"
QUARANTINE = "quarantine.jsonl"
DROPPED = "dropped.jsonl"
SUMMARY = "summary.json"

__all__ = [
    "DOCUMENTS", "DROPPED", "QUARANTINE", "SUMMARY", "Amount", "CorpusSummary", "Dropped",
    "Quarantined", "build_corpus",
]  # fmt: skip


def build_corpus(recipe: Recipe, out: Path, progress: Progress | None = None) -> ArtifactManifest:
    """Write the corpus of a recipe: documents, quarantine, dropped samples, summary, manifest.

    The shares of characters meet `recipe.data.mixture` to within one shortest document a domain.
    The same seed on the same interpreter and packages gives the same bytes.

    Raises:
        DataError: A source yields nothing, or a domain has less text than its share needs.
    """
    out.mkdir(parents=True, exist_ok=True)
    cleaner = Cleaner(recipe.data.cleaning, held_out_problems(recipe))
    with (
        tempfile.TemporaryDirectory(dir=out, prefix=".spool-") as folder,
        Intake(recipe, cleaner, Path(folder)) as intake,
    ):
        kept = np.empty(0, dtype=np.int64)
        cuts: dict[int, int] = {}
        for domain, share in sorted(recipe.data.mixture.items()):
            if share > 0:
                need = round(share * recipe.data.characters)
                chosen = _fill(recipe, intake, domain, need)
                kept = np.concatenate([kept, _take(intake, chosen, need, cuts)])
                if progress is not None:
                    progress(intake.spool.characters(kept), recipe.data.characters)
        tally = Tally()
        with atomic_write(out / DOCUMENTS) as stream:
            for index in intake.spool.shuffled(kept):
                document = _cut(intake.spool.document(int(index)), cuts.get(int(index)))
                tally.count(document)
                stream.write(document.model_dump_json() + "\n")
        write_jsonl(out / QUARANTINE, intake.quarantined())
        write_jsonl(out / DROPPED, intake.samples())
        summary = tally.summary(recipe.data, intake)
    write_json(out / SUMMARY, summary)
    return publish(
        out,
        "documents",
        "corpus",
        recipe_digest=recipe.digest(),
        counts={
            "documents": summary.kept.documents,
            "characters": summary.kept.characters,
            "planned_characters": recipe.data.characters,
            "quarantined": summary.quarantined,
            "rows_read": sum(summary.rows_read.values()),
            "pieces": summary.pieces,
            **{f"dropped_{reason}": count for reason, count in summary.dropped.items()},
            **{f"replaced_{kind}": count for kind, count in summary.replaced.items()},
        },
    )


def _fill(recipe: Recipe, intake: Intake, domain: Domain, need: int) -> Indices:
    """Documents of one domain with at least `need` characters, sampled by row.

    Text of the user's own is read to its end, so that every row of it is checked; what ships with
    packages is read only until there is enough, and further when near-duplicates are taken out.
    """
    readers = [
        _SourceReader(recipe, intake, source)
        for source in recipe.data.sources
        if source.domain == domain
    ]
    first = len(intake.spool)
    wanted = need
    while True:
        for reader in readers:
            reader.read(wanted)
        near = intake.near.find()
        indices = np.arange(first, len(intake.spool), dtype=np.int64)
        usable = indices[[int(index) not in near for index in indices]]
        available = intake.spool.characters(usable)
        if available >= need:
            break
        if all(reader.exhausted for reader in readers):
            raise DataError(_shortage(recipe, intake, domain, available, need))
        wanted += need
    for index in set(indices.tolist()) - set(usable.tolist()):
        intake.drop_near(index)
    return intake.spool.sampled(usable)


class _SourceReader:
    """Reads a source into the spool, as far as it is wanted."""

    def __init__(self, recipe: Recipe, intake: Intake, source: Source) -> None:
        self._intake = intake
        self._source = source
        self._characters = 0
        self._rows: Iterator[Document] = read_documents(
            source,
            seed=recipe.seed,
            tasks=recipe.tasks,
            quarantine=intake.quarantine_for(source),
        )
        self.exhausted = False

    def read(self, characters: int) -> None:
        """Read on until the source has given so many usable characters, or to its end.

        Raises:
            DataError: The source ends without any.
        """
        to_the_end = isinstance(self._source, FileSource)
        while not self.exhausted and (to_the_end or self._characters < characters):
            row = next(self._rows, None)
            if row is None:
                self.exhausted = True
            else:
                self._characters += self._intake.accept(row, self._source)
        if not self._characters:
            raise DataError(_nothing(self._intake, self._source))


def _take(intake: Intake, indices: Indices, need: int, cuts: dict[int, int]) -> Indices:
    """Whole rows in order until the characters are there; the last document is cut to measure."""
    kept = []
    for index in indices.tolist():
        if need <= 0:
            intake.dropped["not_sampled"] += 1
            continue
        characters = intake.spool.characters(np.array([index]))
        if characters > need:
            cuts[index] = max(need, intake.config.minimum_characters)
            # Cutting makes one document two.
            intake.pieces += 1
            intake.dropped["rest_of_cut"] += 1
        need -= characters
        kept.append(index)
    return np.array(kept, dtype=np.int64)


def _cut(document: Document, limit: int | None) -> Document:
    if limit is None:
        return document
    text = next(split_lines(document.text, limit))
    return document.model_copy(update={"text": text, "sha256": digest(text)})


def _nothing(intake: Intake, source: Source) -> str:
    bad, first = intake.bad_rows([source.name])
    if bad == intake.rows[source.name] and first is not None:
        return (
            f"source {source.name!r} yields no document: all {bad} rows are unusable, first "
            f"{first.where}: {first.reason}"
        )
    reasons = {r: n for r, n in intake.dropped_of[source.name].most_common() if n}
    return (
        f"source {source.name!r} yields no document of at least {intake.config.minimum_characters} "
        f"characters that no earlier source has ({intake.rows[source.name]} rows read, {bad} "
        f"unusable, dropped {reasons}); lower data.minimum_characters, loosen data.cleaning, or "
        "point the source elsewhere"
    )


def _shortage(recipe: Recipe, intake: Intake, domain: Domain, available: int, need: int) -> str:
    names = [s.name for s in recipe.data.sources if s.domain == domain]
    bad, bad_row = intake.bad_rows(names)
    first = f" ({bad} rows unusable, first {bad_row.where}: {bad_row.reason})" if bad_row else ""
    dropped = sum((intake.dropped_of[name] for name in names), start=type(intake.dropped)())
    why = f"; dropped {dict(dropped.most_common(5))}" if dropped else ""
    return (
        f"domain {domain!r} needs {need:,} characters (share {recipe.data.mixture[domain]:g} of "
        f"{recipe.data.characters:,}) but its sources {names} have {available:,}{first}{why}; add "
        "a source, lower the share, lower data.characters, or loosen data.cleaning"
    )
