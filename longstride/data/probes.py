"""Key-value probes for long-context stages: a fact somewhere in a long text, asked for at its end.

Training text with a known retrieval distance in every cell of length x depth. The wording differs
from that of the passkey benchmark, which no training text may hold.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from longstride.data.rows import Encoded
from longstride.errors import DataError
from longstride.store.seeds import stream_seed
from longstride.tokens.tokenizer import Tokenizer
from schemas.data import ProbeConfig

_NAMES = (
    "amber", "birch", "cedar", "delta", "ember", "flint", "grove", "heath", "ivory", "jetty",
    "knoll", "larch", "maple", "north", "ochre", "pearl", "quarry", "river", "slate", "thorn",
)  # fmt: skip
_DIGITS = 4
_LEAST_FILLER = 0.4
"""Less filler than this share of a probe would make its depths one and the same."""


def probe_documents(
    config: ProbeConfig,
    tokenizer: Tokenizer,
    filler: Sequence[Encoded],
    window: int,
    seed: int,
) -> tuple[list[Encoded], dict[str, int]]:
    """Probes of every cell, and how many there are of each, by `length/depth`.

    A probe is a part of a document of the corpus in which a line says a value, followed by a line
    that asks for it and gives it; it has exactly its length in tokens and counts towards the
    domain of its document.

    Raises:
        DataError: A length is too short for line, question and enough filler, or no document of
            the corpus is long enough to fill it.
    """
    probes: list[Encoded] = []
    cells: Counter[str] = Counter()
    for share in sorted(set(config.length_shares)):
        length = round(share * window)
        for depth in sorted(set(config.depths)):
            cell = f"{share:g}/{depth:g}"
            for number in range(config.per_cell):
                rng = random.Random(stream_seed(seed, "probes", cell, number))
                probes.append(
                    _probe(tokenizer, filler, length, depth, rng, f"probe:{cell}/{number}")
                )
                cells[cell] += 1
    return probes, dict(cells)


def _probe(
    tokenizer: Tokenizer,
    filler: Sequence[Encoded],
    length: int,
    depth: float,
    rng: random.Random,
    name: str,
) -> Encoded:
    key = f"{rng.choice(_NAMES)}-{rng.choice(_NAMES)}"
    value = "".join(rng.choices("0123456789", k=_DIGITS))
    fact = tokenizer.encode(f"\n{key} = {value}\n")
    question = tokenizer.encode(f"\n{key} = {value}")
    room = length - len(fact) - len(question) - 1
    if room < _LEAST_FILLER * length:
        raise DataError(
            f"a probe of {length} tokens has room for {max(0, room)} tokens of text beside its "
            f"fact and its question ({len(fact) + len(question) + 1} tokens); raise length_shares "
            "of the stage's probes, or leave probes out of stages with windows this short"
        )
    long_enough = [text for text in filler if len(text.tokens) > room]
    if long_enough:
        text = rng.choice(long_enough)
        tokens, domain = text.tokens[:-1], text.domain
    else:
        tokens, domain = _joined(filler, room, rng)
    start = rng.randrange(len(tokens) - room + 1)
    body = tokens[start : start + room]
    before = round(depth * room)
    return Encoded(
        name, domain, [*body[:before], *fact, *body[before:], *question, tokenizer.eos_id]
    )


def _joined(filler: Sequence[Encoded], room: int, rng: random.Random) -> tuple[list[int], str]:
    """Text of several documents of one domain, where none alone is long enough."""
    first = rng.choice(filler)
    same = [text for text in filler if text.domain == first.domain]
    rng.shuffle(same)
    tokens = list(first.tokens[:-1])
    for text in same:
        if len(tokens) >= room:
            break
        tokens += text.tokens[:-1]
    if len(tokens) < room:
        raise DataError(
            f"the corpus has {len(tokens)} tokens of {first.domain}, a probe needs {room}; enlarge "
            "the corpus, or lower the length_shares of the stage's probes"
        )
    return tokens, first.domain
