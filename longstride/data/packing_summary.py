"""What packed rows are made of: waste, cuts, lengths by domain against the source, probes."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from pydantic import Field

from longstride.data.rows import Row
from schemas.base import Contract

SUMMARY = "summary.json"
BUCKETS = ("<1/8", "1/8-1/4", "1/4-1/2", "1/2-1", "1")
"""Lengths as shares of the window; a text of a window or more is in the last one."""
LONG_BUCKETS = ("1/2-1", "1")
"""Half a window or more."""
_EDGES = (1 / 8, 1 / 4, 1 / 2, 1.0)

Lengths = Mapping[str, Counter[int]]
"""Tokens by domain and by length of the text that they stand in."""


class LengthMixture(Contract):
    """Tokens of one domain by the length of the text they stand in."""

    source: dict[str, float]
    """Shares in the corpus, by bucket."""
    packed: dict[str, float]
    """Shares in the rows, by bucket."""
    kl: float
    """KL(packed || source) in nats, half a token added to each bucket."""


class PackingSummary(Contract):
    """What packed rows are made of."""

    rows: int = Field(ge=0)
    """Rows."""
    window: int = Field(ge=1)
    """Tokens of a row."""
    planned_tokens: int | None = None
    """Tokens that the stage trains on, where it says so; the rows are then repeated or enough."""
    tokens: int = Field(ge=0)
    """Tokens that are no padding."""
    waste: float = Field(ge=0.0, le=1.0)
    """Share of padding."""
    segments: int = Field(ge=0)
    """Texts and parts of texts in rows."""
    split_share: float = Field(ge=0.0, le=1.0)
    """Share of segments whose text goes on in another row, or not at all."""
    left_over_tokens: int = Field(default=0, ge=0)
    """Tokens of texts, or of their rests, that no row holds."""
    dropped_too_long: int = Field(default=0, ge=0)
    """Conversations left out because they exceed the window."""
    domain_shares: dict[str, float]
    """Shares of tokens by domain."""
    lengths: dict[str, LengthMixture] = Field(default_factory=dict)
    """Length mixture by domain, where rows are long-context ones."""
    probes: dict[str, int] = Field(default_factory=dict)
    """Key-value probes by `length/depth`, both as shares (of the window, and of the probe)."""


def packing_summary(
    rows: Sequence[Row],
    window: int,
    *,
    counts: Mapping[str, int],
    source: Lengths | None = None,
    probes: Mapping[str, int] | None = None,
) -> PackingSummary:
    """Summarise finished rows; `counts` are those of the manifest."""
    segments = [segment for row in rows for segment in row]
    domains: Counter[str] = Counter()
    for segment in segments:
        domains[segment.domain] += len(segment.tokens)
    tokens = domains.total()
    return PackingSummary(
        rows=len(rows),
        window=window,
        planned_tokens=counts.get("planned_tokens"),
        tokens=tokens,
        waste=1 - tokens / (len(rows) * window) if rows else 0.0,
        segments=len(segments),
        split_share=sum(s.truncated for s in segments) / max(1, len(segments)),
        left_over_tokens=counts.get("left_over_tokens", 0),
        dropped_too_long=counts.get("dropped_too_long", 0),
        domain_shares={domain: count / tokens for domain, count in sorted(domains.items())},
        lengths=length_mixtures(segments_by_length(rows), source, window) if source else {},
        probes=dict(probes or {}),
    )


def segments_by_length(rows: Iterable[Row]) -> Lengths:
    """Tokens of rows by domain and segment length."""
    return by_length((s.domain, len(s.tokens)) for row in rows for s in row)


def by_length(texts: Iterable[tuple[str, int]]) -> Lengths:
    """Tokens by domain and length, of texts given by domain and tokens."""
    found: defaultdict[str, Counter[int]] = defaultdict(Counter)
    for domain, length in texts:
        found[domain][length] += length
    return found


def length_mixtures(packed: Lengths, source: Lengths, window: int) -> dict[str, LengthMixture]:
    """Both mixtures of each packed domain."""
    found = {}
    for domain in sorted(packed):
        before = _buckets(source.get(domain, Counter()), window)
        after = _buckets(packed[domain], window)
        found[domain] = LengthMixture(
            source=_shares(before), packed=_shares(after), kl=_divergence(after, before)
        )
    return found


def _buckets(lengths: Counter[int], window: int) -> list[int]:
    tokens = [0] * len(BUCKETS)
    for length, count in lengths.items():
        tokens[sum(length >= edge * window for edge in _EDGES)] += count
    return tokens


def _shares(tokens: Sequence[int]) -> dict[str, float]:
    total = max(1, sum(tokens))
    return {bucket: count / total for bucket, count in zip(BUCKETS, tokens, strict=True)}


def _divergence(after: Sequence[int], before: Sequence[int]) -> float:
    p = [count + 0.5 for count in after]
    q = [count + 0.5 for count in before]
    return sum(a / sum(p) * math.log(a / sum(p) / (b / sum(q))) for a, b in zip(p, q, strict=True))
