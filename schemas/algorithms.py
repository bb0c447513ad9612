"""RL objectives as a discriminated union: one small config each, never one with thirty options.

All are settings of one unified form (MiniMax-M1 report, eq. 6 and 7): a detached importance weight
with its own pair of bounds, and a token mask with another pair. `is_weight_cap` is always the
absolute upper cap of the weight (5.0 is the report's 1 + eps_high with eps_high = 4.0), and
`clip_low`, `clip_high`, `mask_low` and `mask_high` are always distances from 1.
"""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Contract

Aggregation = Literal["token", "sequence", "prompt", "combined"]
Anchor = Literal["old", "rollout"]


class CorrectionConfig(Contract):
    """Importance sampling for the mismatch between the trainer's and the sampler's probabilities.

    The weight of a token is multiplied by the detached ratio old / rollout. A token whose sampler
    probability was lost takes no part.
    """

    level: Literal["token", "sequence"] = "token"
    """Ratio of each token, or the geometric mean of the ratios of its sequence."""
    outside: Literal["truncate", "zero"] = "truncate"
    """Beyond the bounds: use the bound, or drop the token (the whole sequence, at its level)."""
    low: float | None = Field(default=None, ge=0.0, le=1.0)
    """Smallest ratio; none leaves this side open."""
    cap: float = Field(default=2.0, ge=1.0)
    """Largest ratio."""


class AdvantageConfig(Contract):
    """How rewards become advantages; the mean of the prompt's samples is always subtracted."""

    scale: Literal["group", "batch", "none"] = "group"
    """Divide by the spread of the prompt's samples, of the whole batch (ScaleRL), or not at all."""
    deviation: Literal["population", "sample"] = "population"
    """Standard deviation with the denominator n or n - 1."""


class _Corrected(Contract):
    """What every algorithm may use."""

    correction: CorrectionConfig | None = None
    """Correction of the mismatch between trainer and sampler; none multiplies nothing."""


class _Anchored(_Corrected):
    """What the algorithms with a free average and a free denominator share."""

    aggregation: Aggregation = "token"
    """Average over the tokens of the update (paper), over sequences, over prompts, or `combined`:
    a mixture of tokens and sequences, the report's late-stage remedy."""
    sample_share: float = Field(default=0.5, ge=0.0, le=1.0)
    """Share of the mean over sequences in the aggregation `combined`; no meaning in others."""
    anchor: Anchor = "old"
    """Denominator of the ratio: the trainer's recomputed policy, or the sampler's probability."""

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Self:
        if self.anchor == "rollout" and self.correction is not None:
            raise ValueError(
                "anchor: rollout already divides by the sampler's probability, so a correction "
                "would apply it twice; set anchor: old or remove the correction"
            )
        default = _Anchored.model_fields["sample_share"].default
        if self.aggregation != "combined" and self.sample_share != default:
            raise ValueError(
                f"sample_share={self.sample_share} means nothing with aggregation="
                f"{self.aggregation}; use aggregation=combined, or remove it"
            )
        return self


class CispoConfig(_Anchored):
    """CISPO: every token keeps its gradient; only its importance weight is capped (eq. 4 and 5)."""

    kind: Literal["cispo"] = "cispo"
    """Discriminator."""
    is_weight_cap: float = Field(default=5.0, ge=1.0)
    """Largest importance weight of a token (absolute); below 1 it would scale on-policy tokens."""
    is_weight_floor: float | None = Field(default=None, ge=0.0, le=1.0)
    """Smallest importance weight; none is the paper's setting."""
    mask_low: float | None = Field(default=None, gt=0.0, lt=1.0)
    """Drop tokens with advantage < 0 whose ratio is below 1 - mask_low; none keeps every token."""
    mask_high: float | None = Field(default=None, gt=0.0)
    """Drop tokens with advantage > 0 whose ratio is above 1 + mask_high; none keeps every token."""


class GrpoConfig(_Corrected):
    """GRPO: clipped surrogate, mean over each sequence's tokens and then over sequences."""

    kind: Literal["grpo"] = "grpo"
    """Discriminator."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """The ratio is clipped above at 1 + clip_high."""


class DapoConfig(_Corrected):
    """DAPO: clip-higher surrogate with the token-level mean."""

    kind: Literal["dapo"] = "dapo"
    """Discriminator."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0.0)
    """The ratio is clipped above at 1 + clip_high."""


class PpoClipConfig(_Corrected):
    """PPO's clipped surrogate with the token-level mean and no critic."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    """Discriminator."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """The ratio is clipped above at 1 + clip_high."""


class GspoConfig(_Corrected):
    """GSPO: one length-normalised ratio a sequence, clipped; mean over sequences."""

    kind: Literal["gspo"] = "gspo"
    """Discriminator."""
    clip_low: float = Field(default=3e-4, gt=0.0, lt=1.0)
    """The sequence ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=4e-4, gt=0.0)
    """The sequence ratio is clipped above at 1 + clip_high."""


class ReinforceConfig(_Anchored):
    """REINFORCE with the plain, uncapped importance weight."""

    kind: Literal["reinforce"] = "reinforce"
    """Discriminator."""


class SaoConfig(_Anchored):
    """Plain importance weight inside a band; a token outside of it is dropped, whatever its sign.

    It differs from the clipped surrogates, which keep half of what is outside, and from CISPO,
    which keeps all of it with a bounded weight.
    """

    kind: Literal["sao"] = "sao"
    """Discriminator."""
    band_low: float = Field(default=0.5, ge=0.0, le=1.0)
    """Tokens whose ratio is below are dropped (absolute)."""
    band_high: float = Field(default=5.0, ge=1.0)
    """Tokens whose ratio is above are dropped (absolute)."""


Algorithm = Annotated[
    CispoConfig
    | GrpoConfig
    | DapoConfig
    | PpoClipConfig
    | GspoConfig
    | ReinforceConfig
    | SaoConfig,
    Field(discriminator="kind"),
]
