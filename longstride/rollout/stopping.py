"""When a sample ends early: by a piece of text, or by the repetition rule.

M1 (arXiv 2506.13585, section 4.3) ends a sample after 3,000 consecutive tokens whose probability
is above 0.99 each. The count restarts at any token at or below the threshold.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


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


def extend_runs(runs_R: Tensor, probability_R: Tensor, threshold: float) -> Tensor:
    """Return the length of each row's current run after one more token.

    Args:
        runs_R: run lengths before the token, integers.
        probability_R: probability of the token that each row drew.
        threshold: a token counts only when its probability is strictly above.
    """
    return torch.where(probability_R > threshold, runs_R + 1, 0)


def repetition_stop(probability_T: Tensor, run: int, threshold: float) -> int | None:
    """Return how many tokens of one sample are kept by the rule, or None if it never fires.

    The count includes the last token of the run. `run` 0 turns the rule off.
    """
    if run <= 0:
        return None
    index_T = torch.arange(1, probability_T.shape[0] + 1)
    resets_T = torch.where(probability_T > threshold, 0, index_T).cummax(0).values
    fired = torch.nonzero(index_T - resets_T >= run)
    return int(index_T[fired[0, 0]]) if len(fired) else None
