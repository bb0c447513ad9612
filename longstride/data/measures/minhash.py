"""Near-duplicate residue: MinHash with the 14 x 8 bands of datatrove, candidates then verified.

A pair with Jaccard similarity J of its word 5-grams becomes a candidate with probability
1 - (1 - J^8)^14 (92% at 0.8); a candidate counts when its exact similarity reaches `SIMILARITY`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np

from longstride.data.measures.words import Hashes, mixed, ngrams

SHINGLE: Final = 5
BANDS: Final = 14
ROWS: Final = 8
SIMILARITY: Final = 0.72
"""Where the banding's probability curve is steepest: (1/14)^(1/8)."""
COMPARED: Final = 16
"""Earlier texts of a bucket that a text is compared with."""


def shingle_set(words_W: Hashes) -> Hashes:
    """Distinct word 5-grams, sorted; a shorter text is one shingle."""
    shingles = ngrams(words_W, min(SHINGLE, max(1, len(words_W))))
    return np.unique(shingles)


def jaccard(a: Hashes, b: Hashes) -> float:
    """Exact Jaccard similarity of two sorted sets of shingles; 1 for two empty ones."""
    if not len(a) and not len(b):
        return 1.0
    shared = len(np.intersect1d(a, b, assume_unique=True))
    return shared / (len(a) + len(b) - shared)


def signatures(shingles: Sequence[Hashes]) -> Hashes:
    """MinHash signatures, uint64 [documents, BANDS * ROWS], of non-empty sets."""
    count = BANDS * ROWS
    factor, offset = _permutations(count)
    out = np.empty((len(shingles), count), dtype=np.uint64)
    for row, values in enumerate(shingles):
        for start in range(0, count, ROWS):
            chosen = slice(start, start + ROWS)
            hashed = values[:, None] * factor[chosen] + offset[chosen]
            out[row, chosen] = hashed.min(axis=0)
    return out


@cache
def _permutations(count: int) -> tuple[Hashes, Hashes]:
    """Odd multipliers permute the 64-bit integers; the high bits of the product are well mixed."""
    generator = np.random.default_rng(1)
    factor = generator.integers(0, 2**64, size=count, dtype=np.uint64) | np.uint64(1)
    return factor, generator.integers(0, 2**64, size=count, dtype=np.uint64)


def band_keys(shingles: Hashes) -> Hashes:
    """One 64-bit key a band, uint64 [BANDS], of a non-empty set; equal where the bands are."""
    bands = signatures([shingles]).reshape(BANDS, ROWS)
    keys = np.zeros(BANDS, dtype=np.uint64)
    for row in range(ROWS):
        keys = mixed(keys ^ bands[:, row])
    return keys


def near_duplicates(texts: Sequence[Hashes]) -> set[int]:
    """Indices of texts that nearly repeat an earlier one."""
    shingles = [shingle_set(words) for words in texts]
    full = [index for index, values in enumerate(shingles) if len(values)]
    bands = signatures([shingles[index] for index in full]).reshape(len(full), BANDS, ROWS)
    found: set[int] = set()
    for band in range(BANDS):
        buckets: defaultdict[bytes, list[int]] = defaultdict(list)
        for row, index in enumerate(full):
            bucket = buckets[bands[row, band].tobytes()]
            if index not in found and any(
                jaccard(shingles[index], shingles[earlier]) >= SIMILARITY
                for earlier in bucket[:COMPARED]
            ):
                found.add(index)
            bucket.append(index)
    return found
