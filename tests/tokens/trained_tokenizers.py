from __future__ import annotations

from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from longstride.tokens.tokenizer import SPECIALS, Tokenizer
from schemas.model import TokenizerConfig

CORPUS = [
    "def add(a, b):\n    return a + b\n" * 20,
    "The answer is 12345, because 12000 + 345 = 12345. " * 20,
    # A corpus full of literal tags must not teach the merges to spell them.
    "".join(SPECIALS) * 50,
    "naïve café — 東京 🙂 " * 10,
]


@cache
def trained() -> Tokenizer:
    """One tokenizer for all property tests; training is checked apart."""
    return Tokenizer.train(CORPUS, TokenizerConfig(vocab_size=400), Path(mkdtemp()))
