"""Rows of a stage with a mixture, long text or probes of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from longstride.data.long_rows import long_context_rows
from longstride.data.mixing import documents_for_mixture
from longstride.data.packing import best_fit, fill_rows, piece
from longstride.data.probes import probe_documents
from longstride.data.rows import Encoded, Row
from longstride.errors import DataError
from longstride.tokens.tokenizer import Tokenizer
from schemas.data import ProbeConfig
from schemas.rows import Document, Domain


@dataclass(frozen=True)
class StageMixture:
    """What rows of a stage are to be made of."""

    window: int
    """Tokens of a row."""
    rows: int
    """Rows wanted."""
    long_share: float
    """Least share of tokens in segments of half a window or more."""
    mixture: Mapping[Domain, float] | None
    """Shares of tokens by domain; None: those of the corpus."""
    probes: ProbeConfig | None
    """Key-value probes."""
    seed: int
    """Of the probes."""


def stage_rows(
    documents: Sequence[Document],
    known: Mapping[str, Encoded],
    tokenizer: Tokenizer,
    settings: StageMixture,
) -> tuple[list[Row], int, dict[str, int]]:
    """Rows, tokens left over, and probes by cell.

    Raises:
        DataError: As `long_context_rows`, `documents_for_mixture` and `probe_documents`.
    """
    window = settings.window
    if settings.mixture is not None:
        # One row more than wanted, since whole documents do not fill the last one exactly.
        wanted = (settings.rows + 1) * window
        documents = documents_for_mixture(
            documents, tokenizer, settings.mixture, wanted, window, settings.long_share, known
        )
    if settings.probes is None:
        rows, left_over = _plain_rows(documents, known, tokenizer, settings)
        return rows, left_over, {}
    texts = [known[document.id] for document in documents]
    probes, cells = probe_documents(settings.probes, tokenizer, texts, window, settings.seed)
    begun = best_fit([piece(probe, 0, window) for probe in probes], window)
    _check_share(len(begun), settings)
    room = len(begun) * window - sum(len(probe.tokens) for probe in probes)
    reserved, rest = _split_off(documents, known, room)
    probe_rows, spare = fill_rows(begun, reserved, window)
    if len(probe_rows) < len(begun):
        raise DataError(
            f"the corpus is too small to fill the {len(begun)} rows that begin with probes; "
            "enlarge it (data.characters), or lower per_cell of the stage's probes"
        )
    others = replace(settings, rows=settings.rows - len(begun))
    rows, left_over = _plain_rows(rest, known, tokenizer, others)
    return probe_rows + rows, left_over + spare, cells


def _check_share(rows: int, settings: StageMixture) -> None:
    config = settings.probes
    if config is not None and rows > config.maximum_share * settings.rows:
        raise DataError(
            f"probes take {rows} of the stage's {settings.rows} rows, more than maximum_share="
            f"{config.maximum_share:g}; lower per_cell, give the stage more tokens, or raise "
            "maximum_share"
        )


def _split_off(
    documents: Sequence[Document], known: Mapping[str, Encoded], tokens: int
) -> tuple[list[Encoded], Sequence[Document]]:
    """Documents with at least so many tokens from the end, and the documents before them."""
    end = len(documents)
    while end and tokens > 0:
        end -= 1
        tokens -= len(known[documents[end].id].tokens)
    return [known[document.id] for document in documents[end:]], documents[:end]


def _plain_rows(
    documents: Sequence[Document],
    known: Mapping[str, Encoded],
    tokenizer: Tokenizer,
    settings: StageMixture,
) -> tuple[list[Row], int]:
    if settings.long_share > 0:
        return long_context_rows(
            documents, tokenizer, settings.window, settings.rows, settings.long_share, known
        )
    starts: list[Row] = [[] for _ in range(settings.rows)]
    return fill_rows(starts, [known[document.id] for document in documents], settings.window)
