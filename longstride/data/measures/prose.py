"""Measures of running text, as datatrove defines them for Gopher and FineWeb.

They say something about prose only; code, tables and generated problems break them honestly.
"""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from longstride.data.measures.words import Hashes, is_word, ngrams, without_punctuation

Offsets = NDArray[np.int64]
Facts = dict[str, float]
"""Measures of one document by name."""

_STOP_WORDS: Final = frozenset({"the", "be", "to", "of", "and", "that", "have", "with"})
_TERMINAL: Final = (".", "!", "?", '"', "'", "”", ":", ";", ")")
_PUNCTUATION: Final = string.punctuation + "\u201c\u201d\u2019\u2026"
_LETTER: Final = re.compile(r"[^\W\d_]")
_BULLETS: Final = ("•", "-", "*")
TOP_NGRAMS: Final = (2, 3, 4)
DUPLICATE_NGRAMS: Final = (5, 6, 7, 8, 9, 10)
SHORT_LINE: Final = 30
"""Characters of a line that FineWeb calls short."""
_PARAGRAPHS: Final = re.compile(r"\n{2,}")

NAMES: Final = (
    "words",
    "mean_word_length",
    "symbol_word_ratio",
    "bullet_line_share",
    "ellipsis_line_share",
    "alphabetic_word_share",
    "stop_words",
    "duplicate_line_share",
    "duplicate_line_character_share",
    "duplicate_paragraph_share",
    "duplicate_paragraph_character_share",
    "duplicate_character_share",
    "short_line_share",
    "newline_word_ratio",
    "punctuated_line_share",
    "top_2gram_share",
    "top_3gram_share",
    "top_4gram_share",
    "duplicate_5gram_share",
    "duplicate_6gram_share",
    "duplicate_7gram_share",
    "duplicate_8gram_share",
    "duplicate_9gram_share",
    "duplicate_10gram_share",
)


def prose_facts(text: str, words: Sequence[str], words_W: Hashes) -> Facts:
    """Measure one document of prose; `words` are `split_words(text)`, `words_W` their hashes."""
    spaced = text.split()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    count = max(1, len(spaced))
    named = [word for word in map(_bare, spaced) if word]
    facts: Facts = {
        "words": len(spaced),
        "mean_word_length": sum(map(len, named)) / max(1, len(named)),
        "symbol_word_ratio": max(text.count("#"), text.count("...") + text.count("…")) / count,
        "bullet_line_share": _share(lines, lambda line: line.startswith(_BULLETS)),
        "ellipsis_line_share": _share(lines, lambda line: line.endswith(("...", "…"))),
        "alphabetic_word_share": _share(spaced, lambda word: _LETTER.search(word) is not None),
        "stop_words": len(_STOP_WORDS.intersection(text.lower().split())),
        "punctuated_line_share": _share(lines, lambda line: line.endswith(_TERMINAL)),
    }
    facts.update(_duplicate_lines(lines, max(1, len(text))))
    facts.update(_fineweb_facts(text, len(words)))
    facts.update(_ngram_facts(text, words, words_W))
    return facts


def _bare(word: str) -> str:
    """A word without the punctuation around it; empty for a mark that stands alone."""
    return word.strip(_PUNCTUATION)


def _share(items: Sequence[str], holds: Callable[[str], bool]) -> float:
    return sum(1 for item in items if holds(item)) / len(items) if items else 0.0


def _duplicate_lines(lines: list[str], characters: int) -> Facts:
    repeated, repeated_characters = _repeated(lines)
    return {
        "duplicate_line_share": repeated / max(1, len(lines)),
        "duplicate_line_character_share": repeated_characters / characters,
    }


def _fineweb_facts(text: str, words: int) -> Facts:
    """Paragraphs of Gopher and lines of FineWeb; a word is one of `split_words` here."""
    paragraphs = _PARAGRAPHS.split(text.strip())
    again, again_characters = _repeated(paragraphs)
    lines = [line for line in text.split("\n") if line.strip()]
    _, line_characters = _repeated(lines)
    return {
        "duplicate_paragraph_share": again / len(paragraphs),
        "duplicate_paragraph_character_share": again_characters / max(1, len(text)),
        "duplicate_character_share": line_characters / max(1, len(text) - text.count("\n")),
        "short_line_share": _share(lines, lambda line: len(line) <= SHORT_LINE),
        "newline_word_ratio": text.count("\n") / max(1, words),
    }


def _repeated(items: Sequence[str]) -> tuple[int, int]:
    """Items that an earlier one equals, and their characters (datatrove's find_duplicates)."""
    extra = {item: count - 1 for item, count in Counter(items).items() if count > 1}
    return sum(extra.values()), sum(len(item) * count for item, count in extra.items())


def _ngram_facts(text: str, words: Sequence[str], words_W: Hashes) -> Facts:
    # Punctuation is left out: a rule of dashes is no repetition of words.
    lengths_W = np.fromiter(map(len, words), dtype=np.int64, count=len(words))[is_word(words_W)]
    words_W = without_punctuation(words_W)
    # An n-gram's length counts the spaces between its words, as the joined text would.
    ends = np.concatenate([[0], np.cumsum(lengths_W + 1)])
    characters = max(1, len(text))
    facts: Facts = {}
    for n in TOP_NGRAMS:
        facts[f"top_{n}gram_share"] = _top_share(words_W, ends, n) / characters
    covered = characters
    for n in DUPLICATE_NGRAMS:
        # Where no n-gram repeats, no longer one does.
        covered = _duplicate_share(words_W, ends, n) if covered else 0
        facts[f"duplicate_{n}gram_share"] = covered / characters
    return facts


def _top_share(words_W: Hashes, ends: Offsets, n: int) -> int:
    """Characters covered by the most frequent n-gram; the longest of several."""
    grams = ngrams(words_W, n)
    if not len(grams):
        return 0
    _, first, counts = np.unique(grams, return_index=True, return_counts=True)
    best = first[counts == counts.max()]
    longest = int((ends[best + n] - ends[best] - 1).max())
    return longest * int(counts.max())


def _duplicate_share(words_W: Hashes, ends: Offsets, n: int) -> int:
    """Characters inside n-grams seen before, each counted once (datatrove's find_all_duplicate)."""
    grams = ngrams(words_W, n)
    if len(np.unique(grams)) == len(grams):
        return 0
    seen: set[int] = set()
    characters = index = 0
    while index < len(grams):
        gram = int(grams[index])
        if gram in seen:
            characters += int(ends[index + n] - ends[index] - 1)
            index += n
        else:
            seen.add(gram)
            index += 1
    return characters
