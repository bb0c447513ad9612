"""The chat template: turns in, token ids and training targets out; and answers taken apart.

    <|system|>text<|end|><|user|>text<|end|><|assistant|><think>thinking</think>answer<|end|>

Text is encoded turn by turn, so earlier turns never change when later ones are added.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import NamedTuple

from longstride.errors import DataError
from longstride.tokens.tokenizer import (
    ASSISTANT,
    END_THINK,
    SYSTEM,
    THINK,
    USER,
    Tokenizer,
)
from schemas.rows import Message

_HEADERS = {"system": SYSTEM, "user": USER, "assistant": ASSISTANT}
_THINK_TAGS = re.compile(f"({re.escape(THINK)}|{re.escape(END_THINK)})")


class Answer(NamedTuple):
    """An assistant's text, taken apart."""

    thinking: str | None
    """What stands between the think tags; None unless the text is well formed."""
    answer: str
    """What follows the thinking, stripped. Of a malformed text: what follows the last `</think>`,
    nothing if thinking was never closed, everything if there are no tags."""
    well_formed: bool
    """Exactly one <think>...</think>, nothing before it, and an answer after it."""


def render_prompt(tokenizer: Tokenizer, messages: Sequence[Message]) -> list[int]:
    """Return the ids of a conversation up to and including the header of the assistant's turn.

    Raises:
        DataError: the turns are out of order, or the last one is not the user's.
    """
    _check_turns(messages, last="user")
    ids = [token for message in messages for token in _turn(tokenizer, message)[0]]
    return [*ids, tokenizer.special(ASSISTANT)]


def render_example(
    tokenizer: Tokenizer, messages: Sequence[Message]
) -> tuple[list[int], list[int]]:
    """Return the ids of a conversation and its loss mask, of equal length.

    The mask is 1 on tokens that are trained as prediction targets: the content of every assistant
    turn, think tags included, and the <|end|> that closes it. Headers and other turns are 0.

    Raises:
        DataError: the turns are out of order, or the last one is not the assistant's.
    """
    _check_turns(messages, last="assistant")
    ids: list[int] = []
    mask: list[int] = []
    for message in messages:
        turn, targets = _turn(tokenizer, message)
        ids += turn
        mask += targets
    return ids, mask


def parse_answer(text: str) -> Answer:
    """Take an assistant's text apart at its think tags."""
    before, opened, rest = text.partition(THINK)
    thinking, closed, after = rest.partition(END_THINK)
    answer = after.strip()
    tags_once = len(_THINK_TAGS.findall(text)) == 2
    if opened and closed and tags_once and not before.strip() and answer:
        return Answer(thinking, answer, well_formed=True)
    _, last_tag, tail = text.rpartition(END_THINK)
    if THINK in tail:
        return Answer(None, "", well_formed=False)
    return Answer(None, (tail if last_tag else text).strip(), well_formed=False)


def _turn(tokenizer: Tokenizer, message: Message) -> tuple[list[int], list[int]]:
    """Return the ids and the loss mask of one closed turn."""
    trained = message.role == "assistant"
    content: list[int] = []
    for piece in _THINK_TAGS.split(message.content) if trained else [message.content]:
        if trained and piece in (THINK, END_THINK):
            content.append(tokenizer.special(piece))
        elif piece:
            content += tokenizer.encode(piece)
    content.append(tokenizer.end_id)
    ids = [tokenizer.special(_HEADERS[message.role]), *content]
    return ids, [0] + [int(trained)] * len(content)


def _check_turns(messages: Sequence[Message], last: str) -> None:
    roles = [message.role for message in messages]
    turns = roles[1:] if roles[:1] == ["system"] else roles
    expected = ["user" if index % 2 == 0 else "assistant" for index in range(len(turns))]
    if not turns or turns != expected or turns[-1] != last:
        raise DataError(
            f"turns {roles} are not a conversation that ends with the {last}; write an optional "
            "system turn, then user and assistant in turn"
        )
