"""A mixture of its own for one stage: which documents of the corpus its rows are made of."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from longstride.data.rows import Encoded
from longstride.errors import DataError
from longstride.tokens.tokenizer import Tokenizer
from schemas.rows import Document, Domain

_Counted = tuple[Document, int]


def documents_for_mixture(
    documents: Sequence[Document],
    tokenizer: Tokenizer,
    mixture: Mapping[Domain, float],
    tokens: int,
    window: int,
    long_share: float = 0.0,
    known: Mapping[str, Encoded] | None = None,
) -> list[Document]:
    """Documents whose tokens stand in the shares of `mixture`, in their given order.

    Each domain is filled with whole documents as long as they fit, documents of half a window or
    more first, up to `long_share` of it. What is short in one domain makes the whole selection
    smaller, so that the shares hold; the stage then repeats its rows.

    Args:
        documents: the corpus, in random order.
        tokenizer: counts their tokens, the end of text included.
        mixture: share of tokens by domain; shares sum to 1.
        tokens: tokens wanted in all.
        window: tokens of a row.
        long_share: part of each domain that long documents may fill before the others.
        known: documents that are encoded already, by id.

    Raises:
        DataError: The corpus has no document of a domain that the mixture asks for.
    """
    wanted = {domain: share for domain, share in mixture.items() if share > 0}
    by_domain: dict[Domain, list[_Counted]] = defaultdict(list)
    for document in documents:
        if document.domain in wanted:
            whole = known.get(document.id) if known else None
            count = len(whole.tokens) if whole else len(tokenizer.encode(document.text)) + 1
            by_domain[document.domain].append((document, count))
    if missing := sorted(set(wanted) - set(by_domain)):
        raise DataError(
            f"the stage's mixture asks for {', '.join(missing)}, but the corpus has no document of "
            "that domain; give it a share in data.mixture, or leave it out of the stage's mixture"
        )
    supplies = {domain: sum(n for _, n in found) for domain, found in by_domain.items()}
    total = min(float(tokens), *(supplies[domain] / share for domain, share in wanted.items()))
    chosen: set[str] = set()
    for domain, share in wanted.items():
        found = by_domain[domain]
        quota = share * total
        long = [pair for pair in found if 2 * pair[1] >= window]
        rest = quota - _take(long, long_share * quota, chosen)
        _take([pair for pair in found if pair[0].id not in chosen], rest, chosen)
    return [document for document in documents if document.id in chosen]


def _take(found: Sequence[_Counted], quota: float, chosen: set[str]) -> int:
    """Add documents that still fit into the quota; return their tokens."""
    taken = 0
    for document, count in found:
        if taken + count <= quota:
            chosen.add(document.id)
            taken += count
    return taken
