"""Passkey retrieval (Mohtashami and Jaggi, arXiv 2305.16300): one line of a long text says a key.

Rows for every cell of depth x length: filler, the line with the key at the depth, more filler, and
a question whose answer is the key. All rows of one length have exactly that many tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from longstride.store.seeds import stream_seed
from longstride.tokens.tokenizer import Tokenizer

DEPTHS = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where the key stands, as a share of the filler before it."""
LENGTH_SHARES = (0.25, 0.5, 1.0)
"""Lengths of rows, as shares of the window."""
KEY_DIGITS = 5
_DISTRACTORS = 24
"""Other keys; the tokens that they have at each place compete with the true one's."""
_TEMPLATES = (
    ("\nThe pass key is {key}. Remember it. {key} is the pass key.\n",
     "\nWhat is the pass key? The pass key is "),
    ("\nThe pass key is {key}.\n", "\nThe pass key is "),
    ("\nkey: {key}\n", "\nkey: "),
)  # fmt: skip
"""Line and question, from the long form of the paper to one that fits windows of tens of tokens."""
_LEAST_FILLER = 0.4
"""A template is used when at least this share of the row is filler."""


@dataclass(frozen=True)
class PasskeyRow:
    """One text, ready for a teacher-forced pass."""

    length: int
    """Tokens of the row, the key at its end included."""
    depth: float
    """Share of the filler that stands before the key."""
    tokens: list[int]
    """Filler, line, filler, question, key."""
    key: list[int]
    """Tokens of the key, the last ones of the row."""
    rivals: list[list[int]]
    """For each token of the key, other tokens that a key of random digits could have there."""


def passkey_rows(
    tokenizer: Tokenizer, filler: Sequence[int], window: int, samples: int, seed: int
) -> list[PasskeyRow]:
    """Rows of all cells, `samples` each, ordered by length.

    Args:
        tokenizer: encodes line, question and key.
        filler: tokens of running text, used from random places and repeated when too few.
        window: tokens of the longest row; shorter ones have a quarter and a half of it. A length
            into which not even the shortest line and question fit is left out.
        samples: rows a cell, each with its own key and its own filler.
        seed: equal arguments give equal rows.
    """
    special = {tokenizer.pad_id, tokenizer.eos_id}
    text = [token for token in filler if token not in special]
    rows = []
    for length in sorted({round(share * window) for share in LENGTH_SHARES}):
        for depth in DEPTHS:
            for sample in range(samples):
                # The same keys and filler at every depth, so that depths are compared alone.
                rng = random.Random(stream_seed(seed, "passkey", length, sample))
                row = _row(tokenizer, text, length, depth, rng)
                if row is not None:
                    rows.append(row)
    return rows


def _row(
    tokenizer: Tokenizer, text: Sequence[int], length: int, depth: float, rng: random.Random
) -> PasskeyRow | None:
    keys = [_digits(rng) for _ in range(1 + _DISTRACTORS)]
    key, *others = [tokenizer.encode(text) for text in keys]
    start = rng.randrange(len(text)) if text else 0
    for line, question in _TEMPLATES:
        said, asked = tokenizer.encode(line.format(key=keys[0])), tokenizer.encode(question)
        room = length - len(said) - len(asked) - len(key)
        if text and room >= _LEAST_FILLER * length:
            before = round(depth * room)
            filler = [text[(start + i) % len(text)] for i in range(room)]
            tokens = [*filler[:before], *said, *filler[before:], *asked, *key]
            return PasskeyRow(length, depth, tokens, key, _rivals(key, others))
    return None


def _digits(rng: random.Random) -> str:
    return str(rng.randrange(10 ** (KEY_DIGITS - 1), 10**KEY_DIGITS))


def _rivals(key: Sequence[int], others: Sequence[Sequence[int]]) -> list[list[int]]:
    rivals = []
    for place, token in enumerate(key):
        found = {other[place] for other in others if place < len(other)} - {token}
        rivals.append(sorted(found))
    return rivals


def cell_name(length: int, depth: float) -> str:
    """Name of a cell inside metric names, for example `length_512/depth_50`."""
    return f"length_{length}/depth_{round(100 * depth)}"
