"""The repetition rule: stop once a run of tokens has been almost certain.

M1 (arXiv 2506.13585, section 4.3) ends a sample after 3,000 consecutive tokens whose probability
is above 0.99 each. The count restarts at any token at or below the threshold.
"""

from __future__ import annotations

import torch
from torch import Tensor


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
