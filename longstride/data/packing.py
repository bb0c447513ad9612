"""Packing: documents and conversations into rows of exactly `window` tokens.

Shape suffixes: N rows, T tokens of a row.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longstride.data.packing_summary import SUMMARY, Lengths, by_length, packing_summary
from longstride.data.rows import Encoded, Row, Segment
from longstride.data.text import order_key
from longstride.errors import DataError
from longstride.store.artifacts import digest_of_artifact, open_artifact, publish
from longstride.store.files import read_jsonl, write_json, write_jsonl
from longstride.tokens.tokenizer import Tokenizer
from schemas.artifacts import ArtifactManifest
from schemas.data import ProbeConfig
from schemas.rows import Document, Domain, PackedRow

TENSORS = "packed.safetensors"
ROWS = "rows.jsonl"


def pack_documents(
    documents_dir: Path,
    tokenizer: Tokenizer,
    window: int,
    tokens: int,
    seed: int,
    out: Path,
    stage: str,
    recipe_digest: str = "",
    long_share: float = 0.0,
    mixture: Mapping[Domain, float] | None = None,
    probes: ProbeConfig | None = None,
) -> ArtifactManifest:
    """Pack a corpus into full rows without padding, one pass over it at most.

    A document that reaches the end of a row goes on in the next one as a new segment with positions
    from 0. There are `tokens / window` rows (rounded up), fewer when the corpus is shorter: the
    training loop repeats it. What does not fill the last row is left out and counted.

    With `long_share`, at least that share of the tokens stands in segments of half a window or
    more, taken from every domain in proportion; documents of one source are joined in the order of
    their paths where single ones are too short, and the row names them `joined:a+b`. With
    `mixture`, the domains have these shares of the tokens in place of those of the corpus. With
    `probes`, some rows begin with key-value probes. The summary says how the lengths of each domain
    compare with the corpus.

    Raises:
        DataError: The corpus does not fill one row, or has too little long text for `long_share`,
            or the probes do not fit.
    """
    out.mkdir(parents=True, exist_ok=True)
    parent = open_artifact(documents_dir, "documents")
    documents = list(read_jsonl(documents_dir / "documents.jsonl", Document))
    documents.sort(key=lambda document: order_key(seed, stage, document.id))
    wanted = -(-tokens // window)
    if mixture is None and long_share == 0 and probes is None:
        encoded = encode_until(documents, tokenizer, wanted * window)
        rows, left_over = fill_rows([[] for _ in range(wanted)], encoded, window)
        source: Lengths | None = None
        cells: dict[str, int] = {}
    else:
        from longstride.data.stage_mixtures import StageMixture, stage_rows

        known = {document.id: encode(document, tokenizer) for document in documents}
        source = by_length((e.domain, len(e.tokens)) for e in known.values())
        settings = StageMixture(window, wanted, long_share, mixture, probes, seed)
        rows, left_over, cells = stage_rows(documents, known, tokenizer, settings)
        order = sorted(range(len(rows)), key=lambda index: order_key(seed, stage, str(index)))
        rows = [rows[index] for index in order]
    if not rows:
        raise DataError(
            f"{documents_dir} holds fewer tokens than one row of window={window}; enlarge the "
            "corpus (data.characters) or lower the window"
        )
    return write_packed(
        rows,
        window,
        tokenizer.pad_id,
        out,
        stage=stage,
        recipe_digest=recipe_digest,
        parents={"documents": digest_of_artifact(parent), "tokenizer": tokenizer.digest},
        counts={"left_over_tokens": left_over, "planned_tokens": tokens},
        source=source,
        probes=cells,
    )


def encode(document: Document, tokenizer: Tokenizer) -> Encoded:
    """A document's tokens, closed by the end-of-text token."""
    ids = [*tokenizer.encode(document.text), tokenizer.eos_id]
    return Encoded(document.id, document.domain, ids)


def encode_until(documents: Iterable[Document], tokenizer: Tokenizer, tokens: int) -> list[Encoded]:
    """Encode documents in order until there are enough tokens or no more documents."""
    encoded: list[Encoded] = []
    total = 0
    for document in documents:
        if total >= tokens:
            break
        encoded.append(encode(document, tokenizer))
        total += len(encoded[-1].tokens)
    return encoded


def fill_rows(
    starts: Sequence[Row], documents: Iterable[Encoded], window: int
) -> tuple[list[Row], int]:
    """Fill begun rows with documents laid end to end, cut at row ends.

    Returns the full rows, and how many tokens of the documents and of unfilled rows are left over.
    """
    stream = iter(documents)
    done: list[Row] = []
    left_over = 0
    document, start = next(stream, None), 0
    for begun in starts:
        row = list(begun)
        room = window - sum(len(segment.tokens) for segment in row)
        while room and document is not None:
            row.append(piece(document, start, start + room))
            start += len(row[-1].tokens)
            room -= len(row[-1].tokens)
            if start == len(document.tokens):
                document, start = next(stream, None), 0
        if room:
            left_over += window - room
        else:
            done.append(row)
    if document is not None:
        left_over += len(document.tokens) - start + sum(len(d.tokens) for d in stream)
    return done, left_over


def piece(document: Encoded, start: int, end: int) -> Segment:
    """A part of a document; its first token has no context, so it is no target."""
    tokens = document.tokens[start:end]
    mask = [0] + [1] * (len(tokens) - 1)
    truncated = document.continues or end < len(document.tokens)
    return Segment(document.document, document.domain, tokens, mask, truncated)


def best_fit(segments: Sequence[Segment], window: int) -> list[Row]:
    """Put whole segments into as few rows as best-fit-decreasing finds; none is split.

    Each segment, longest first, goes to the row with the least room that still holds it.
    """
    rows: list[Row] = []
    rooms: list[tuple[int, int]] = []  # (room, row index), ascending
    for segment in sorted(segments, key=lambda s: -len(s.tokens)):
        need = len(segment.tokens)
        place = bisect.bisect_left(rooms, (need, -1))
        if place == len(rooms):
            rows.append([segment])
            bisect.insort(rooms, (window - need, len(rows) - 1))
        else:
            room, index = rooms.pop(place)
            rows[index].append(segment)
            bisect.insort(rooms, (room - need, index))
    return rows


def write_packed(
    rows: Sequence[Row],
    window: int,
    pad_id: int,
    out: Path,
    *,
    stage: str,
    recipe_digest: str,
    parents: Mapping[str, str],
    counts: Mapping[str, int],
    source: Lengths | None = None,
    probes: Mapping[str, int] | None = None,
) -> ArtifactManifest:
    """Write the tensors, the side records, the summary and the manifest of packed rows."""
    from safetensors.numpy import save_file

    records = [_record(f"{stage}-{number:07d}", row, window) for number, row in enumerate(rows)]
    save_file(_tensors(rows, window, pad_id), out / TENSORS)
    write_jsonl(out / ROWS, records)
    summary = packing_summary(rows, window, counts=counts, source=source, probes=probes)
    write_json(out / SUMMARY, summary)
    return publish(
        out,
        "packed",
        stage,
        parents=parents,
        recipe_digest=recipe_digest,
        counts={
            "rows": len(records),
            "window": window,
            "tokens": sum(window - record.padding_tokens for record in records),
            "target_tokens": sum(record.target_tokens for record in records),
            "padding_tokens": sum(record.padding_tokens for record in records),
            "truncated_documents": sum(record.truncated_documents for record in records),
            **counts,
        },
    )


def _tensors(
    rows: Sequence[Row], window: int, pad_id: int
) -> dict[str, npt.NDArray[np.int32] | npt.NDArray[np.uint8]]:
    shape = (len(rows), window)
    tokens_NT = np.full(shape, pad_id, dtype=np.int32)
    segments_NT = np.full(shape, -1, dtype=np.int32)
    positions_NT = np.zeros(shape, dtype=np.int32)
    loss_mask_NT = np.zeros(shape, dtype=np.uint8)
    for number, row in enumerate(rows):
        start = 0
        for index, segment in enumerate(row):
            end = start + len(segment.tokens)
            tokens_NT[number, start:end] = segment.tokens
            segments_NT[number, start:end] = index
            positions_NT[number, start:end] = np.arange(end - start)
            loss_mask_NT[number, start:end] = segment.mask
            start = end
    return {
        "tokens_NT": tokens_NT,
        "segments_NT": segments_NT,
        "positions_NT": positions_NT,
        "loss_mask_NT": loss_mask_NT,
    }


def _record(name: str, row: Row, window: int) -> PackedRow:
    domains: Counter[str] = Counter()
    for segment in row:
        domains[segment.domain] += len(segment.tokens)
    return PackedRow(
        id=name,
        window=window,
        documents=[segment.document for segment in row],
        longest_document_tokens=max(len(segment.tokens) for segment in row),
        domain_tokens=dict(sorted(domains.items())),
        padding_tokens=window - sum(domains.values()),
        target_tokens=sum(sum(segment.mask) for segment in row),
        truncated_documents=sum(segment.truncated for segment in row),
    )
