"""Reflection words in sampled tokens, found on the tokens' own bytes."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence


class ReflectionMatcher:
    """Finds the words of some buckets in sequences of token ids.

    The bytes of the tokens are joined and searched, so that a word is found however it was cut into
    tokens, also in ways in which the tokenizer itself would never cut it. Case does not matter. A
    word that begins or ends with an ASCII letter or digit must begin or end there: "awaits" holds
    no "wait".
    """

    def __init__(
        self, buckets: Mapping[str, Sequence[str]], token_bytes: Callable[[int], bytes]
    ) -> None:
        """Compile the words of each bucket; `token_bytes` gives the bytes of a token id."""
        self.names = tuple(buckets)
        self._token_bytes = token_bytes
        self._pieces: dict[int, bytes] = {}
        words = sorted(
            ((word, name) for name, listed in buckets.items() for word in listed),
            key=lambda pair: -len(pair[0]),
        )
        self._buckets = [name for _, name in words]
        self._needles = [word.strip().lower().encode() for word, _ in words]
        self._searchable = all(word.isascii() for word, _ in words)
        self._pattern = re.compile(
            b"|".join(b"(" + _pattern_of(word) + b")" for word, _ in words), re.IGNORECASE
        )

    def find(self, tokens: Sequence[int]) -> list[tuple[int, int, str]]:
        """First token, last token and bucket of every occurrence, in order.

        The first token is the one that holds the first letter of the word: there the policy
        decides to reflect.
        """
        if not self._buckets:
            return []
        starts, joined = [], bytearray()
        for token in tokens:
            starts.append(len(joined))
            joined += self._piece(token)
        if self._searchable and not self._may_occur(joined.lower()):
            return []
        found = []
        for match in self._pattern.finditer(joined):
            first = bisect_right(starts, match.start()) - 1
            last = bisect_right(starts, match.end() - 1) - 1
            found.append((first, last, self._buckets[(match.lastindex or 1) - 1]))
        return found

    def _may_occur(self, folded: bytearray) -> bool:
        """A plain search, far quicker than the pattern: most answers hold no such word."""
        return any(needle in folded for needle in self._needles)

    def labels(self, tokens: Sequence[int]) -> list[int]:
        """Index into `names` of the bucket that starts at each token; -1 elsewhere."""
        labels = [-1] * len(tokens)
        for first, _, bucket in self.find(tokens):
            labels[first] = self.names.index(bucket)
        return labels

    def _piece(self, token: int) -> bytes:
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._token_bytes(token)
        return piece


def _pattern_of(word: str) -> bytes:
    """Regular expression of a word, with borders where it begins or ends in ASCII."""
    # Bytes above 127 are no letters to a byte pattern, so case folding covers ASCII alone; both
    # cases of other letters are spelled out.
    parts = []
    for letter in word.strip():
        forms = dict.fromkeys((letter, letter.lower(), letter.upper()))
        encoded = [re.escape(form.encode()) for form in forms]
        parts.append(encoded[0] if letter.isascii() else b"(?:" + b"|".join(encoded) + b")")
    body = b"".join(parts)
    before = rb"(?<![A-Za-z0-9])" if _is_word(word.strip()[0]) else b""
    after = rb"(?![A-Za-z0-9])" if _is_word(word.strip()[-1]) else b""
    return before + body + after


def _is_word(letter: str) -> bool:
    return letter.isascii() and letter.isalnum()
