"""The texts that judges are asked with, and how answers are put into them as mere data."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from longstride.tokens.chat import parse_answer

_PLACE = re.compile(r"\$([a-z]+)")
_VERSION = re.compile(r"version: (\d+)\n")
_CONTROL = re.compile(
    # What chat templates use to begin and end turns; also the fullwidth form.
    r"<[|\uff5c][^<>\n]{1,64}[|\uff5c]>|\[/?INST\]|<</?SYS>>|</?s>|<(?:start|end)_of_turn>",
    re.IGNORECASE,
)
_LEFT_OUT = "\n[The rest is longer than may be read, and does not count.]"


@dataclass(frozen=True)
class Template:
    """A text with `$places`."""

    name: str
    version: int
    text: str
    digest: str
    """Of the text: an edit without a new version does not meet old judgments in the cache."""

    def render(self, texts: Mapping[str, str], nonce: str) -> str:
        """Fill every place in one pass, so that what is filled in is never read as a place."""
        values = {**texts, "nonce": nonce}
        return _PLACE.sub(lambda match: values[match.group(1)], self.text)


@cache
def load_template(name: str) -> Template:
    """The template of this name, from the package."""
    folder = resources.files("longstride.rewards.generative") / "templates"
    whole = (folder / f"{name}.txt").read_text(encoding="utf-8")
    match = _VERSION.match(whole)
    assert match is not None, f"template {name} does not begin with its version"
    text = whole[match.end() :]
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Template(name, int(match.group(1)), text, digest)


def shielded(text: str) -> str:
    """A text whose control tokens are broken up."""
    return _CONTROL.sub(lambda match: " ".join(match.group()), text)


def readable(answer: str, characters: int) -> str:
    """What a judge is shown of an answer.

    Thinking is taken out, the control tokens of chat templates are broken up (a server that renders
    a chat would otherwise read them as the end of the turn), and what is too long is cut.
    """
    if "<think>" in answer or "</think>" in answer:
        answer = parse_answer(answer).answer
    answer = shielded(answer.strip())
    return answer if len(answer) <= characters else answer[:characters] + _LEFT_OUT


def fresh_nonce(texts: Mapping[str, str]) -> str:
    """128 random bits in hexadecimal that no text holds."""
    while True:
        nonce = secrets.token_hex(16)
        if not any(nonce in text for text in texts.values()):
            return nonce
