"""What the reading of all sources shares: the spool, digests seen, rejects, counts."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self

from longstride.data.cleaning import Cleaner, Drop
from longstride.data.near import NearDuplicates
from longstride.data.spool import DigestSet, Spool
from longstride.data.text import digest, normalise, split_lines
from longstride.store.files import read_jsonl
from schemas.base import Contract
from schemas.data import ReasoningGymSource, Source
from schemas.recipe import Recipe
from schemas.rows import Document, Domain

_EXCERPT = 160


class Quarantined(Contract):
    """A row that could not be used."""

    source: str
    """Source in the recipe."""
    where: str
    """File and row."""
    reason: str
    """Why, in one sentence."""


class Dropped(Contract):
    """A document that a rule took out: one of the samples that are kept for inspection."""

    id: str
    """The document."""
    source: str
    """Source in the recipe."""
    domain: Domain
    """Mixture share it would have counted towards."""
    reason: str
    """Name of the rule."""
    value: str = ""
    """What was measured."""
    limit: str = ""
    """What would have been allowed."""
    excerpt: str = ""
    """How the document begins."""


class Intake:
    """Takes rows in, keeps usable documents in the spool, and accounts for every other one.

    Rows read are rows accepted and rows quarantined; pieces are documents in the spool and those
    dropped, by reason.
    """

    def __init__(self, recipe: Recipe, cleaner: Cleaner, folder: Path) -> None:
        """Open the spool in a folder for files that do not outlive the step."""
        self.config = recipe.data
        self.cleaner = cleaner
        self.rows: Counter[str] = Counter()
        """Rows read by source, the quarantined ones included."""
        self.pieces = 0
        """Documents after splitting."""
        self.dropped: Counter[str] = Counter()
        """Documents dropped, by reason."""
        self.dropped_of: defaultdict[str, Counter[str]] = defaultdict(Counter)
        """The same by source."""
        self.spool = Spool(folder / "documents.jsonl", recipe.seed)
        self.near = NearDuplicates(
            folder / "bands", lambda i: cleaner.shingles(self.spool.document(i).text)
        )
        self._seen = DigestSet()
        self._samples: defaultdict[str, list[Dropped]] = defaultdict(list)
        self._bad: Counter[str] = Counter()
        self._first_bad: dict[str, Quarantined] = {}
        self._quarantine_path = folder / "quarantine.jsonl"
        self._quarantine = self._quarantine_path.open("w", encoding="utf-8")
        self._open_files = ExitStack()
        for file in (self.spool, self.near, self._quarantine):
            self._open_files.callback(file.close)

    def __enter__(self) -> Self:
        """Use as a context; the files are closed at its end."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Close the files."""
        self._open_files.close()

    def quarantine_for(self, source: Source) -> Callable[[str, str], None]:
        """What a reader of a source calls for a row that it cannot use."""

        def quarantine(where: str, reason: str) -> None:
            self.rows[source.name] += 1
            bad = Quarantined(source=source.name, where=where, reason=reason)
            self._bad[source.name] += 1
            self._first_bad.setdefault(source.name, bad)
            self._quarantine.write(bad.model_dump_json() + "\n")

        return quarantine

    def quarantined(self) -> Iterator[Quarantined]:
        """All quarantined rows."""
        self._quarantine.flush()
        return read_jsonl(self._quarantine_path, Quarantined)

    def bad_rows(self, sources: list[str]) -> tuple[int, Quarantined | None]:
        """How many rows of some sources are quarantined, and the first of them."""
        firsts = [self._first_bad[name] for name in sources if name in self._first_bad]
        return sum(self._bad[name] for name in sources), firsts[0] if firsts else None

    def samples(self) -> Iterator[Dropped]:
        """Samples of dropped documents, by reason."""
        for reason in sorted(self._samples):
            yield from self._samples[reason]

    def accept(self, row: Document, source: Source) -> int:
        """Spool the usable documents of a row; return their characters."""
        refusal = self.cleaner.refusal(row)
        if refusal is not None:
            self.quarantine_for(source)(row.path, refusal)
            return 0
        self.rows[source.name] += 1
        generated = isinstance(source, ReasoningGymSource)
        whole = self.cleaner.mend(normalise(row.text), row, generated)
        texts = list(split_lines(whole, self.config.document_characters))
        characters = 0
        name = ""
        for number, text in enumerate(texts):
            self.pieces += 1
            own = row.id if len(texts) == 1 else f"{row.id}#{number:04d}"
            key = digest(text)
            piece = row.model_copy(update={"id": own, "text": text, "sha256": key})
            if self._admit(piece, name or own, generated):
                name = name or own
                characters += len(text)
        return characters

    def _admit(self, piece: Document, row: str, generated: bool) -> bool:
        if len(piece.text.strip()) < self.config.minimum_characters:
            shortest = f">= {self.config.minimum_characters}"
            self.drop(piece, Drop("short", f"{len(piece.text)} characters", shortest))
            return False
        if not self._seen.add(int(piece.sha256[:16], 16)):
            self.drop(piece, Drop("duplicate", "the text of an earlier document", "none"))
            return False
        drop, shingles = self.cleaner.judge(piece, generated)
        if drop is not None:
            self.drop(piece, drop)
            return False
        index = self.spool.append(piece, row)
        if shingles is not None:
            self.near.add(index, shingles)
        return True

    def drop(self, document: Document, drop: Drop) -> None:
        """Count a dropped document, and keep it as a sample while there are few."""
        self.dropped[drop.reason] += 1
        self.dropped_of[document.source][drop.reason] += 1
        samples = self._samples[drop.reason]
        if len(samples) < self.cleaner.config.samples:
            samples.append(
                Dropped(
                    id=document.id, source=document.source, domain=document.domain,
                    reason=drop.reason, value=drop.value, limit=drop.limit,
                    excerpt=document.text[:_EXCERPT],
                )
            )  # fmt: skip

    def drop_near(self, index: int) -> None:
        """Count a spooled document as a near-duplicate."""
        value = "nearly the text of an earlier document"
        self.drop(self.spool.document(index), Drop("near_duplicate", value, "none"))
