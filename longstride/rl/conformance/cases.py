"""The cases: small updates, each of which some implementation gets wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longstride.rl.conformance.reference import Answer, Inputs, answer
from schemas.algorithms import (
    Algorithm,
    CispoConfig,
    CorrectionConfig,
    DapoConfig,
    GrpoConfig,
    GspoConfig,
    PpoClipConfig,
    ReinforceConfig,
    SaoConfig,
)

GARBAGE = 1e4
"""What padding holds in one case: exp() of it overflows."""
LOST = math.nan
"""Log-probability that the sampler did not give."""


@dataclass(frozen=True)
class Case:
    """An update, the algorithm it is under, and why it is here."""

    name: str
    why: str
    algorithm: Algorithm
    inputs: Inputs

    @property
    def settings(self) -> dict[str, Any]:
        """The algorithm's fields, as in a recipe."""
        return self.algorithm.model_dump(mode="json")

    @property
    def expected(self) -> Answer:
        """Loss and gradient, from the closed form."""
        return answer(self.inputs, self.settings)


def _update(
    new: Sequence[Sequence[float]],
    old: Sequence[Sequence[float]],
    advantages: Sequence[float],
    *,
    sampler: Sequence[Sequence[float]] | None = None,
    groups: Sequence[int] | None = None,
    cut: Sequence[int] = (),
    padding: float = 0.0,
) -> Inputs:
    """An update from probabilities; shorter rows are padded on the right."""
    width = max(len(row) for row in new)

    def padded(rows: Sequence[Sequence[float]], filling: float) -> list[list[float]]:
        return [
            [*(math.log(p) if math.isfinite(p) else p for p in row),
             *[filling] * (width - len(row))]
            for row in rows
        ]  # fmt: skip

    return Inputs(
        logp=padded(new, padding),
        old_logp=padded(old, -padding),
        rollout_logp=padded(sampler if sampler is not None else old, -padding),
        advantages=advantages,
        mask=[[1] * len(row) + [0] * (width - len(row)) for row in new],
        groups=list(groups) if groups is not None else [0] * len(new),
        cut=cut,
    )


_RARE = _update([[0.025, 0.65, 0.05]], [[0.02, 0.6, 0.02]], [1.0])
_BOTH_SIGNS = _update(
    [[0.06, 0.5, 0.49, 0.35], [0.02, 0.27, 0.1, 0.4]],
    [[0.2, 0.5, 0.1, 0.05], [0.4, 0.3, 0.02, 0.01]],
    [1.5, -0.5],
)
_LADDER = _update(
    [[0.15, 0.27, 0.33, 0.45, 0.9], [0.1, 0.18, 0.22, 0.3, 0.6]],
    [[0.3] * 5, [0.2] * 5],
    [1.0, -1.0],
)
_RAGGED = _update(
    [[0.3, 0.42, 0.2, 0.55], [0.5], [0.1, 0.24], [0.6, 0.3, 0.12]],
    [[0.25, 0.4, 0.3, 0.5], [0.4], [0.12, 0.2], [0.55, 0.35, 0.1]],
    [1.2, -0.7, 0.4, -1.1],
    sampler=[[0.2, 0.41, 0.3, 0.45], [0.1], [0.12, 0.4], [0.5, 0.36, 0.11]],
    groups=[0, 0, 1, 1],
)
_CUT = _update(
    [[0.3, 0.42, 0.2, 0.55], [0.5], [0.1, 0.24], [0.6, 0.3, 0.12]],
    [[0.25, 0.4, 0.3, 0.5], [0.4], [0.12, 0.2], [0.55, 0.35, 0.1]],
    [1.2, -0.7, 0.4, -1.1],
    cut=[1],
)
_SEQUENCES = Inputs(
    logp=[[-1.0, -2.0, -0.5, 0.0], [-0.7, -0.1, 0.0, 0.0], [-3.0, -0.2, -0.9, -1.1]],
    old_logp=[
        [-1.0004, -2.0002, -0.5003, 0.0], [-0.702, -0.101, 0.0, 0.0],
        [-2.9992, -0.1998, -0.8995, -1.0998],
    ],
    rollout_logp=[
        [-1.0004, -2.0002, -0.5003, 0.0], [-0.702, -0.101, 0.0, 0.0],
        [-2.9992, -0.1998, -0.8995, -1.0998],
    ],
    advantages=[1.0, 1.0, -1.0],
    mask=[[1, 1, 1, 0], [1, 1, 0, 0], [1, 1, 1, 1]],
    groups=[0, 0, 0],
)  # fmt: skip
_GARBAGE = _update(
    [[0.6, 0.4, 0.1], [0.8, 0.05]], [[0.55, 0.22, 0.37], [0.8, 0.14]], [1.0, -1.0],
    padding=GARBAGE,
)  # fmt: skip
_EXTREME = Inputs(
    logp=[[-0.1, -0.7]], old_logp=[[-90.0, -0.5]], rollout_logp=[[-90.0, -0.5]],
    advantages=[1.0], mask=[[1, 1]], groups=[0],
)  # fmt: skip
_LOST = _update(
    [[0.3, 0.4], [0.5, 0.2]], [[0.2, 0.5], [0.4, 0.3]], [1.0, -0.5],
    sampler=[[0.25, LOST], [LOST, 0.3]],
)  # fmt: skip


def _masked(**values: Any) -> CorrectionConfig:
    return CorrectionConfig(outside="zero", **values)


CASES: tuple[Case, ...] = (
    Case("rare-token", "a rare token beyond the cap keeps a capped gradient",
         CispoConfig(is_weight_cap=1.2), _RARE),
    Case("cap-both-signs", "the cap binds for both signs of the advantage, and there is no floor",
         CispoConfig(is_weight_cap=5.0), _BOTH_SIGNS),
    Case("floor", "a floor that was asked for lifts the weight of tokens the policy has left",
         CispoConfig(is_weight_cap=5.0, is_weight_floor=0.8), _BOTH_SIGNS),
    Case("padding", "padding that overflows exp() is selected out and not multiplied out",
         CispoConfig(is_weight_cap=5.0), _GARBAGE),
    Case("extreme-ratio", "a log-ratio of 90 stays finite",
         CispoConfig(is_weight_cap=5.0), _EXTREME),
    Case("ragged", "the mean runs over tokens, whatever the lengths",
         CispoConfig(is_weight_cap=1.2), _RAGGED),
    Case("microbatches", "the denominator is that of the update, not of a microbatch",
         CispoConfig(is_weight_cap=1.2), _CUT),
    Case("mask-of-ppo", "open weights under the mask of eq. 7 have the gradient of PPO",
         CispoConfig(is_weight_cap=1e6, mask_low=0.2, mask_high=0.28), _LADDER),
    Case("mask-and-cap", "the mask has bounds of its own beside those of the weight",
         CispoConfig(is_weight_cap=1.2, mask_low=0.3, mask_high=0.6), _LADDER),
    Case("reinforce", "without a cap the weight is the ratio",
         ReinforceConfig(), _BOTH_SIGNS),
    Case("ppo", "a clipped token has no gradient, and its value is the clipped one",
         PpoClipConfig(clip_low=0.2, clip_high=0.2), _LADDER),
    Case("ppo-padding", "padding that overflows under a clip that leaves A < 0 unbounded",
         PpoClipConfig(clip_low=0.2, clip_high=0.2), _GARBAGE),
    Case("dapo", "clip-higher with the mean over tokens",
         DapoConfig(), _RAGGED),
    Case("grpo", "the mean over each sequence and then over sequences",
         GrpoConfig(), _RAGGED),
    Case("gspo", "one length-normalised ratio a sequence",
         GspoConfig(), _SEQUENCES),
    Case("prompt-mean", "the mean over the tokens of each prompt and then over prompts (ScaleRL)",
         CispoConfig(aggregation="prompt"), _RAGGED),
    Case("combined-mean", "half the mean over sequences and half that over tokens",
         CispoConfig(aggregation="combined", sample_share=0.5), _RAGGED),
    Case("anchor-rollout", "the sampler's probability under the ratio",
         CispoConfig(is_weight_cap=2.0, anchor="rollout"), _RAGGED),
    Case("lost-probability", "a token whose sampling probability was lost has the weight 1",
         CispoConfig(is_weight_cap=2.0, anchor="rollout"), _LOST),
    Case("correction", "old / sampler, truncated, multiplies the weight",
         CispoConfig(correction=CorrectionConfig(cap=1.3)), _RAGGED),
    Case("correction-masked", "tokens whose old / sampler is out of bounds are dropped",
         CispoConfig(correction=_masked(low=0.6, cap=1.3)), _RAGGED),
    Case("correction-sequence", "whole sequences are dropped by their geometric mean",
         CispoConfig(correction=_masked(level="sequence", low=0.8, cap=1.2)), _RAGGED),
    Case("band", "tokens outside a band are dropped whatever their sign",
         SaoConfig(band_low=0.5, band_high=2.0), _BOTH_SIGNS),
)  # fmt: skip
"""In the order in which they are printed; the first ones are CISPO as the report has it."""
