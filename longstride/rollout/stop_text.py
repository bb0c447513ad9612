"""Stop strings: a sample ends at the token that completes one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property


@dataclass(frozen=True)
class StopText:
    """Strings that end a sample; the token that completes one is the sample's last."""

    strings: tuple[str, ...]
    """Any of them ends a sample; none is empty."""
    decode: Callable[[Sequence[int]], str]
    """Tokens to text, for example `Tokenizer.decode_sample`."""

    def __post_init__(self) -> None:
        """Refuse what could never match, or would always."""
        if not self.strings or not all(self.strings):
            raise ValueError(f"stop strings {self.strings} must be at least one, none empty")

    @cached_property
    def _reach(self) -> int:
        """Tokens that an occurrence can span: every token carries at least one byte."""
        return max(len(string.encode()) for string in self.strings)

    def cut(self, tokens: Sequence[int], known: int = 0) -> int | None:
        """Return how many tokens are kept, or None when no string occurs.

        Args:
            tokens: of one sample, its prompt left out.
            known: this many of them are known to hold no string.
        """
        if not self._occurs(tokens[max(0, known - self._reach) :]):
            return None
        ends = range(known + 1, len(tokens) + 1)
        return next(
            (end for end in ends if self._occurs(tokens[max(0, end - self._reach) : end])), None
        )

    def _occurs(self, tokens: Sequence[int]) -> bool:
        text = self.decode(tokens)
        return any(string in text for string in self.strings)
