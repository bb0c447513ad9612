"""Scripts of a text; answers that change script in the middle are a known sign of drift in RL."""

from __future__ import annotations

import re
from typing import Final

LEAST_LETTERS: Final = 2
"""Letters of a script that count; a lone Greek letter is mathematics."""
_SCRIPTS: Final = {
    "latin": re.compile(r"[A-Za-z\u00c0-\u024f]"),
    "cyrillic": re.compile(r"[\u0400-\u052f]"),
    "arabic": re.compile(r"[\u0600-\u06ff]"),
    "hebrew": re.compile(r"[\u0590-\u05ff]"),
    "devanagari": re.compile(r"[\u0900-\u097f]"),
    "thai": re.compile(r"[\u0e00-\u0e7f]"),
    "han": re.compile(r"[\u3400-\u9fff]"),
    "kana": re.compile(r"[\u3040-\u30ff]"),
    "hangul": re.compile(r"[\uac00-\ud7af]"),
}


def scripts_of(text: str) -> set[str]:
    """Scripts with at least `LEAST_LETTERS` letters in a text; Greek is left to mathematics."""
    if text.isascii():
        return {"latin"} if len(_SCRIPTS["latin"].findall(text)) >= LEAST_LETTERS else set()
    found = {
        name for name, letters in _SCRIPTS.items() if len(letters.findall(text)) >= LEAST_LETTERS
    }
    # Japanese is written in both.
    return found - {"kana"} | {"han"} if "kana" in found else found
