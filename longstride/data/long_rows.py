"""Rows for context extension: a promised share of tokens in long segments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby

from longstride.data.packing import encode, fill_rows, piece
from longstride.data.rows import Encoded, Row, Segment
from longstride.errors import DataError
from longstride.tokens.tokenizer import Tokenizer
from schemas.rows import Document

_Indexed = tuple[Document, Encoded]


def long_context_rows(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    window: int,
    rows: int,
    long_share: float,
    known: Mapping[str, Encoded] | None = None,
) -> tuple[list[Row], int]:
    """Rows of which at least `long_share` of the tokens stand in segments of half a window or more.

    A long row begins with a segment of one long document; the rest of it, and the other rows, are
    filled with the remaining documents end to end. Each domain gives long segments in proportion to
    its tokens as far as it has them (Fu et al., arXiv 2402.10171: up-sampling long documents of all
    domains keeps the mixture, up-sampling books alone does not). Returns the rows and the tokens
    left over. `known` holds documents that are encoded already, by id.

    Raises:
        DataError: The corpus has too little long text, documents joined included.
    """
    known = known or {}
    encoded = [(d, known[d.id] if d.id in known else encode(d, tokenizer)) for d in documents]
    total = sum(len(e.tokens) for _, e in encoded)
    rows = min(rows, total // window)
    needed = long_share * rows * window
    long = [e for _, e in encoded if 2 * len(e.tokens) >= window]
    short = [pair for pair in encoded if 2 * len(pair[1].tokens) < window]
    lengths = [len(segment.tokens) for segment in _long_segments(long, window)]
    joined, stream = _join(short, tokenizer, window, _joins_needed(lengths, rows, window, needed))
    available = _long_segments([*long, *joined], window)
    shares: Counter[str] = Counter()
    for _, text in encoded:
        shares[text.domain] += len(text.tokens)
    quotas = {domain: needed * count / total for domain, count in shares.items()}
    ordered = _by_quota(sorted(available, key=lambda s: -len(s.tokens)), quotas)
    heads, spare = _take(ordered, rows, needed)
    if sum(len(s.tokens) for s in heads) < needed:  # rows run out: the longest ones, then
        heads, spare = _take(sorted(ordered, key=lambda s: -len(s.tokens)), rows, needed)
    if sum(len(s.tokens) for s in heads) < needed:
        raise DataError(_too_little(heads, total, rows, window, long_share))
    tails = [t for e in [*long, *joined] if (t := _tail(e, window)) is not None]
    starts: list[Row] = [[head] for head in heads] + [[] for _ in range(rows - len(heads))]
    return fill_rows(starts, [*stream, *tails, *spare], window)


def _joins_needed(lengths: Sequence[int], rows: int, window: int, needed: float) -> int:
    """How many windows of joined documents bring the longest segments, one a row, to `needed`."""
    best = sorted(lengths, reverse=True)[:rows]
    total, joins = sum(best), 0
    while total < needed and joins < rows:
        joins += 1
        total += window - (best.pop() if len(best) + joins > rows else 0)
    return joins


def _long_segments(documents: Sequence[Encoded], window: int) -> Iterator[Segment]:
    """Whole windows of each document, and its last part when that has half a window or more."""
    for document in documents:
        for start in range(0, len(document.tokens), window):
            segment = piece(document, start, start + window)
            if 2 * len(segment.tokens) >= window:
                yield segment


def _by_quota(segments: Sequence[Segment], quotas: Mapping[str, float]) -> list[Segment]:
    """First the segments that each domain needs for its quota, then the others, each in order."""
    taken: Counter[str] = Counter()
    first: list[Segment] = []
    others: list[Segment] = []
    for segment in segments:
        if taken[segment.domain] < quotas.get(segment.domain, 0.0):
            taken[segment.domain] += len(segment.tokens)
            first.append(segment)
        else:
            others.append(segment)
    return first + others


def _tail(document: Encoded, window: int) -> Encoded | None:
    """What `_long_segments` leaves of a document."""
    rest = len(document.tokens) % window
    if rest == 0 or 2 * rest >= window:
        return None
    return Encoded(document.document, document.domain, document.tokens[-rest:])


def _take(
    segments: Sequence[Segment], rows: int, needed: float
) -> tuple[list[Segment], list[Encoded]]:
    """The first segments with enough tokens, one a row; the others go back to the stream."""
    heads: list[Segment] = []
    spare: list[Encoded] = []
    tokens = 0
    for segment in segments:
        if tokens < needed and len(heads) < rows:
            heads.append(segment)
            tokens += len(segment.tokens)
        else:
            spare.append(
                Encoded(segment.document, segment.domain, segment.tokens, segment.truncated)
            )
    return heads, spare


def _join(
    short: Sequence[_Indexed], tokenizer: Tokenizer, window: int, count: int
) -> tuple[list[Encoded], list[Encoded]]:
    """Join neighbours of one source, by path, into `count` documents of a window or more.

    Returns the joined documents and those left as they are, the latter in their given order.
    """
    groups: list[list[_Indexed]] = []
    if count:
        ordered = sorted(short, key=lambda pair: (pair[0].source, pair[0].path, pair[0].id))
        for _, pairs in groupby(ordered, key=lambda pair: pair[0].source):
            groups += _windows_of(list(pairs), window)
    rank = {document.id: index for index, (document, _) in enumerate(short)}
    groups.sort(key=lambda group: rank[group[0][0].id])
    gap = tokenizer.encode("\n\n")
    joined: list[Encoded] = []
    used: set[str] = set()
    for group in groups[:count]:
        joined.append(_as_one([e for _, e in group], gap))
        used.update(document.id for document, _ in group)
    return joined, [e for document, e in short if document.id not in used]


def _windows_of(pairs: Sequence[_Indexed], window: int) -> Iterator[list[_Indexed]]:
    group: list[_Indexed] = []
    tokens = 0
    for pair in pairs:
        group.append(pair)
        tokens += len(pair[1].tokens)
        if tokens >= window:
            yield group
            group, tokens = [], 0


def _as_one(parts: Sequence[Encoded], gap: list[int]) -> Encoded:
    """One document: its parts without their end tokens, a blank line apart, and one end token."""
    tokens = list(parts[0].tokens[:-1])
    for part in parts[1:]:
        tokens += [*gap, *part.tokens[:-1]]
    name = "joined:" + "+".join(part.document for part in parts)
    return Encoded(name, parts[0].domain, [*tokens, parts[0].tokens[-1]])


def _too_little(
    heads: Sequence[Segment], total: int, rows: int, window: int, long_share: float
) -> str:
    found = sum(len(segment.tokens) for segment in heads)
    return (
        f"long_share={long_share:g} of {rows} rows x {window} tokens needs "
        f"{round(long_share * rows * window):,} tokens in segments of at least {window // 2}, but "
        f"the corpus ({total:,} tokens) has {found:,}, with neighbours of one source joined; raise "
        "data.characters or data.document_characters, or lower long_share"
    )
