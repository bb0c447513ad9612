"""Overlap with held-out problems, aware of the templates that generated problems share.

A text holds a problem *whole* when all of its words and signs follow one another in the text. It
*overlaps* when it shares a word n-gram with a problem. An n-gram of a template is no evidence: the
words that all problems of a family begin and end with are set aside, and an n-gram counts only when
one problem alone has it. Signs are left out of n-grams, as in datatrove and open-r1; they are kept
for whole problems, where 3 - 4 is not 3 + 4.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from longstride.data.measures.words import Hashes, WordHasher, ngrams, without_punctuation


@dataclass(frozen=True)
class Problem:
    """A held-out problem."""

    id: str
    family: str
    text: str


class ProblemIndex:
    """Finds held-out problems inside texts."""

    def __init__(self, problems: Iterable[Problem], n: int, hasher: WordHasher) -> None:
        """Index problems by their words and by their word n-grams of length `n`."""
        self._n = n
        families: defaultdict[str, list[Hashes]] = defaultdict(list)
        for problem in problems:
            families[problem.family].append(hasher.hashes(problem.text))
        whole: defaultdict[int, set[int]] = defaultdict(set)
        grams: Counter[int] = Counter()
        for members in families.values():
            for words in members:
                if len(words):
                    whole[len(words)].add(int(ngrams(words, len(words))[0]))
            for own in _without_template([without_punctuation(words) for words in members]):
                grams.update(set(ngrams(own, n).tolist()))
        self._grams = _sorted(gram for gram, count in grams.items() if count == 1)
        self._whole = {length: _sorted(keys) for length, keys in whole.items()}

    def holds(self, words_W: Hashes) -> bool:
        """Whether a text holds a problem whole."""
        return any(_any_in(ngrams(words_W, n), keys) for n, keys in self._whole.items())

    def equals(self, words_W: Hashes) -> bool:
        """Whether a text is a problem, no more and no less."""
        keys = self._whole.get(len(words_W))
        return keys is not None and _any_in(ngrams(words_W, len(words_W)), keys)

    def overlaps(self, words_W: Hashes) -> bool:
        """Whether a text shares a distinctive word n-gram with a problem."""
        return _any_in(ngrams(without_punctuation(words_W), self._n), self._grams)


def _sorted(keys: Iterable[int]) -> Hashes:
    return np.array(sorted(keys), dtype=np.uint64)


def _any_in(values: Hashes, keys: Hashes) -> bool:
    if not len(values) or not len(keys):
        return False
    at = np.searchsorted(keys, values)
    at[at == len(keys)] = 0
    return bool((keys[at] == values).any())


def _without_template(members: Sequence[Hashes]) -> list[Hashes]:
    """Drop the words that all problems of a family begin with, and end with."""
    if len(members) < 2:
        return list(members)
    shortest = min(len(words) for words in members)
    before = after = 0
    while before < shortest and len({int(words[before]) for words in members}) == 1:
        before += 1
    while after < shortest - before and len({int(words[-1 - after]) for words in members}) == 1:
        after += 1
    return [words[before : len(words) - after] for words in members]
