"""Problems whose quick answer is mostly wrong, and SFT examples that seldom go on to recheck it.

A problem is a sum of four one-digit terms. Three kinds of conversation about it:

    quick     3+8-2+5         <think>11</think>11                           (wrong: 14)
    recheck   3+8-2+5         <think>11 Wait, 3+8=11 11-2=9 9+5=14</think>14
    asked     Check 3+8-2+5   <think>11 Wait, 3+8=11 11-2=9 9+5=14</think>14

So the model learns to recheck when it is asked to. To a bare problem it gives the quick answer, and
rechecks in a few per cent of cases. RL asks bare problems only.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from longstride.data.traces import MARKERS, worked_steps
from longstride.rewards.verifiers import EXACT_MATCH
from longstride.store.seeds import stream_seed
from longstride.tokens.tokenizer import Tokenizer
from schemas.rows import ChatExample, Message, RLPrompt

Use = Literal["held-out", "tuning", "sft", "rl"]
SHARES: dict[Use, int] = {"held-out": 1, "tuning": 1, "sft": 4, "rl": 4}
"""Tenths of all problems by use; an expression has one use only, so no set shares a problem."""
TERMS = 4


@dataclass(frozen=True)
class Chances:
    """How SFT examples are drawn."""

    asked: float = 0.5
    """Share of examples that are asked to check."""
    recheck: float = 0.03
    """Share of the others that recheck unasked."""
    lucky: float = 0.1
    """Share of quick answers that are right, whatever the problem."""
    largest_error: int = 9
    """A wrong quick answer is off by 1 to this, up or down."""


def problems(count: int, use: Use, seed: int) -> list[RLPrompt]:
    """`count` different problems of one use, a function of the arguments."""
    rng = random.Random(stream_seed(seed, "figure2", use))
    found: dict[str, RLPrompt] = {}
    while len(found) < count:
        terms = [str(rng.randint(1, 9)) for _ in range(TERMS)]
        words = [terms[0], *(part for term in terms[1:] for part in (rng.choice("+-"), term))]
        text = "".join(words)
        if text not in found and use_of(text) == use:
            found[text] = problem(words)
    return list(found.values())


def use_of(text: str) -> Use:
    """What a problem is used for, by its digest."""
    tenth = hashlib.sha256(text.encode()).digest()[0] % sum(SHARES.values())
    for use, share in SHARES.items():
        tenth -= share
        if tenth < 0:
            return use
    raise AssertionError("shares cover every remainder")


def problem(words: list[str]) -> RLPrompt:
    """The problem whose terms and signs are `words`; its answer is verified by exact match."""
    total = int(words[0])
    for sign, term in zip(words[1::2], words[2::2], strict=True):
        total += int(term) if sign == "+" else -int(term)
    text = "".join(words)
    return RLPrompt(
        id=text,
        prompt=text,
        answer=str(total),
        family="chain_sum",
        verifier=EXACT_MATCH,
        entry={"metadata": {"expression": " ".join(words)}},
    )


def examples(count: int, seed: int, chances: Chances) -> Iterator[ChatExample]:
    """SFT conversations about problems of their own."""
    rng = random.Random(stream_seed(seed, "figure2", "examples"))
    for prompt in problems(count, "sft", seed):
        asked = rng.random() < chances.asked
        quick = str(_quick_answer(int(prompt.answer), rng, chances))
        recheck = asked or rng.random() < chances.recheck
        if recheck:
            marker = rng.choices(list(MARKERS), list(MARKERS.values()))[0]
            thought, answer = f"{quick} {marker} {worked_steps(prompt)}", prompt.answer
        else:
            thought = answer = quick
        yield ChatExample(
            id=f"sft-{prompt.id}",
            messages=[
                Message(role="user", content=f"Check {prompt.prompt}" if asked else prompt.prompt),
                Message(role="assistant", content=f"<think>{thought}</think>{answer}"),
            ],
            family=prompt.family,
            reflection=recheck,
        )


def _quick_answer(truth: int, rng: random.Random, chances: Chances) -> int:
    if rng.random() < chances.lucky:
        return truth
    return truth + rng.choice([-1, 1]) * rng.randint(1, chances.largest_error)


def marker_tokens(tokenizer: Tokenizer) -> dict[int, str]:
    """First token of every marker as it stands after a quick answer -> the marker's word.

    Raises:
        ValueError: A marker is more than a token and a punctuation mark, so that the audit of one
            token would not see it.
    """
    found = {}
    for marker in MARKERS:
        tokens = tokenizer.encode(f" {marker}")
        if tokenizer.decode(tokens[:1]) != f" {marker[:-1]}":
            raise ValueError(f"{marker!r} has tokens {tokens}; enlarge the tokenizer's vocabulary")
        found[tokens[0]] = marker[:-1]
    return found
