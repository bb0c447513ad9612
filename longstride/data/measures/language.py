"""The language of a text, as py3langid's naive Bayes over byte n-grams sees it."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

UNDETERMINED: Final = "und"
"""Code of a text that has too few letters to tell (ISO 639-2)."""
LEAST_LETTERS: Final = 20
_EXCERPT: Final = 2_000
_EXCERPTS: Final = 3


def language_of(text: str) -> tuple[str, float]:
    """ISO 639-1 code of a text's main language and its probability in [0, 1].

    Only excerpts from the beginning, the middle and the end of a long text are read, so that the
    cost of a document is bounded. A text with fewer than `LEAST_LETTERS` letters is `und` with 0.
    """
    excerpt = _excerpt(text)
    if sum(map(str.isalpha, excerpt)) < LEAST_LETTERS:
        return UNDETERMINED, 0.0
    code, probability = _identifier().classify(excerpt)
    return str(code), float(probability)


def _excerpt(text: str) -> str:
    if len(text) <= _EXCERPT * _EXCERPTS:
        return text
    gap = (len(text) - _EXCERPT) // (_EXCERPTS - 1)
    starts = [number * gap for number in range(_EXCERPTS)]
    return "\n".join(text[start : start + _EXCERPT] for start in starts)


@cache
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
