"""Text as streams of 64-bit word hashes, so that n-gram work is array work.

Legend: W words of a text, G n-grams of a text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

_WORD: Final = re.compile(r"\w+|[^\w\s]")
_REMEMBERED: Final = 1 << 18
"""Distinct words whose hashes are kept; the vocabulary of a large corpus has no end."""
_BASE: Final = 0x9E3779B97F4A7C15
_INVERSE: Final = pow(_BASE, -1, 2**64)


def split_words(text: str) -> list[str]:
    """Lower-cased words; a punctuation mark is a word of its own, so that 3 - 4 is not 3 + 4."""
    return _WORD.findall(text.lower())


def is_proper(word: str) -> bool:
    """Whether an element of `split_words` is a word and no punctuation mark."""
    return word[0].isalnum() or word[0] == "_"


class WordHasher:
    """Stable 64-bit hashes of words; those of frequent words are remembered.

    The lowest bit of a hash is 1 for punctuation and 0 for a word proper.
    """

    def __init__(self) -> None:
        """Start without words."""
        self._known: dict[str, int] = {}

    def hashes(self, text: str) -> Hashes:
        """Hashes of words and punctuation marks of a text, uint64 [W]."""
        return self.hash_words(split_words(text))

    def hash_words(self, words: Sequence[str]) -> Hashes:
        """Hashes of what `split_words` gave, uint64 [W]."""
        known = self._known
        if len(known) > _REMEMBERED:
            known.clear()
        for word in set(words).difference(known):
            digest = hashlib.blake2b(word.encode("utf-8", "surrogatepass"), digest_size=8)
            value = int.from_bytes(digest.digest(), "little")
            known[word] = value & ~1 if is_proper(word) else value | 1
        return np.fromiter((known[word] for word in words), dtype=np.uint64, count=len(words))


def is_word(words_W: Hashes) -> NDArray[np.bool_]:
    """True on words proper, False on punctuation marks, bool [W]."""
    return np.asarray((words_W & np.uint64(1)) == 0)


def without_punctuation(words_W: Hashes) -> Hashes:
    """The words proper of a stream."""
    return np.asarray(words_W[is_word(words_W)])


def ngrams(words_W: Hashes, n: int) -> Hashes:
    """Hashes of the n-grams in order, uint64 [G] with G = max(0, W - n + 1).

    A polynomial modulo 2^64 whose base is odd, hence invertible: differences of one running sum
    give every n at the same cost.
    """
    count = len(words_W) - n + 1
    if n < 1 or count <= 0:
        return np.empty(0, dtype=np.uint64)
    power, inverse = _powers(1 << len(words_W).bit_length())
    sums = np.zeros(len(words_W) + 1, dtype=np.uint64)
    np.cumsum(words_W * inverse[: len(words_W)], out=sums[1:])
    return mixed((sums[n:] - sums[:-n]) * power[:count])


def mixed(values: Hashes) -> Hashes:
    """Spread every bit over the whole word (the finaliser of splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


@lru_cache(maxsize=32)
def _powers(size: int) -> tuple[Hashes, Hashes]:
    def of(base: int) -> Hashes:
        steps = np.full(size, base, dtype=np.uint64)
        steps[0] = 1
        return np.multiply.accumulate(steps)

    return of(_BASE), of(_INVERSE)
