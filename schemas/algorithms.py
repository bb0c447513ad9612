"""RL objectives as a discriminated union: one small config each, never one with thirty options.

All are settings of one unified form (MiniMax-M1 report, eq. 6 and 7): a detached importance weight
with its own pair of bounds, and a token mask with another pair. `is_weight_cap` is always the
absolute upper cap of the weight (5.0 is the report's 1 + eps_high with eps_high = 4.0).
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from schemas.base import Contract

Aggregation = Literal["token", "sequence", "prompt"]
Anchor = Literal["old", "rollout"]


class CispoConfig(Contract):
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
    aggregation: Aggregation = "token"
    """Average over the tokens of the update (paper), over sequences, or over prompts."""
    anchor: Anchor = "old"
    """Denominator of the ratio: the trainer's recomputed policy, or the sampler's probability."""


class GrpoConfig(Contract):
    """GRPO: clipped surrogate, mean over each sequence's tokens and then over sequences."""

    kind: Literal["grpo"] = "grpo"
    """Discriminator."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """The ratio is clipped above at 1 + clip_high."""


class DapoConfig(Contract):
    """DAPO: clip-higher surrogate with the token-level mean."""

    kind: Literal["dapo"] = "dapo"
    """Discriminator."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.28, gt=0.0)
    """The ratio is clipped above at 1 + clip_high."""


class PpoClipConfig(Contract):
    """PPO's clipped surrogate with the token-level mean and no critic."""

    kind: Literal["ppo_clip"] = "ppo_clip"
    """Discriminator."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """The ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """The ratio is clipped above at 1 + clip_high."""


class GspoConfig(Contract):
    """GSPO: one length-normalised ratio a sequence, clipped; mean over sequences."""

    kind: Literal["gspo"] = "gspo"
    """Discriminator."""
    clip_low: float = Field(default=3e-4, gt=0.0, lt=1.0)
    """The sequence ratio is clipped below at 1 - clip_low."""
    clip_high: float = Field(default=4e-4, gt=0.0)
    """The sequence ratio is clipped above at 1 + clip_high."""


class ReinforceConfig(Contract):
    """REINFORCE with the plain, uncapped importance weight."""

    kind: Literal["reinforce"] = "reinforce"
    """Discriminator."""
    aggregation: Aggregation = "token"
    """Average over the tokens of the update, over sequences, or over prompts."""
    anchor: Anchor = "old"
    """Denominator of the ratio."""


Algorithm = Annotated[
    CispoConfig | GrpoConfig | DapoConfig | PpoClipConfig | GspoConfig | ReinforceConfig,
    Field(discriminator="kind"),
]
