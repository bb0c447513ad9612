"""What a corpus is made of, and what became of the rest."""

from __future__ import annotations

from collections import Counter

from pydantic import Field

from longstride.data.intake import Intake
from schemas.base import Contract
from schemas.data import DataConfig
from schemas.rows import Document


class Amount(Contract):
    """Documents and characters."""

    documents: int = Field(ge=0)
    """Number of documents."""
    characters: int = Field(ge=0)
    """Number of characters."""


class CorpusSummary(Contract):
    """What a corpus is made of, and what became of the rest.

    Every row and every document is accounted for: rows read are rows accepted and rows quarantined;
    pieces are documents kept and documents dropped.
    """

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
    """Documents dropped by reason: `short`, `duplicate`, `near_duplicate`, `language`,
    `holds_problem`, `problem_ngram`, a measure of prose, `not_sampled`, `rest_of_cut`."""
    dropped_by_source: dict[str, dict[str, int]]
    """Documents that a rule dropped, by source and reason."""
    replaced: dict[str, int]
    """Addresses replaced by a reserved one, by kind."""
    quarantined: int = Field(ge=0)
    """Rows that could not be used."""


class Tally:
    """Counts documents as they are written."""

    def __init__(self) -> None:
        """Start at nothing."""
        self._documents: Counter[tuple[str, str]] = Counter()
        self._characters: Counter[tuple[str, str]] = Counter()

    def count(self, document: Document) -> None:
        """Count one document."""
        for key in (("domain", document.domain), ("source", document.source), ("all", "")):
            self._documents[key] += 1
            self._characters[key] += len(document.text)

    def _by(self, kind: str) -> dict[str, Amount]:
        names = sorted(name for found, name in self._documents if found == kind)
        return {
            name: Amount(
                documents=self._documents[kind, name], characters=self._characters[kind, name]
            )
            for name in names
        }

    def summary(self, config: DataConfig, intake: Intake) -> CorpusSummary:
        """The summary of what was counted and of what the intake left out."""
        by_domain = self._by("domain")
        characters = self._characters["all", ""]
        return CorpusSummary(
            kept=Amount(documents=self._documents["all", ""], characters=characters),
            by_domain=by_domain,
            by_source=self._by("source"),
            target_shares={str(domain): share for domain, share in sorted(config.mixture.items())},
            shares={domain: amount.characters / characters for domain, amount in by_domain.items()},
            rows_read=dict(sorted(intake.rows.items())),
            pieces=intake.pieces,
            dropped=dict(sorted(intake.dropped.items())),
            dropped_by_source={
                source: dict(sorted(reasons.items()))
                for source, reasons in sorted(intake.dropped_of.items())
            },
            replaced=dict(sorted(intake.cleaner.replaced.items())),
            quarantined=intake.bad_rows(list(intake.rows))[0],
        )
