"""What the RL audit looks at: reflection words, and the clip that it compares with."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from schemas.base import Contract

ALL_REFLECTIONS = "reflection"
OTHER_TOKENS = "other"
RESERVED_BUCKETS = (ALL_REFLECTIONS, OTHER_TOKENS)


class AuditConfig(Contract):
    """Settings of the audit; they change what is measured, never what is learnt."""

    reflection: dict[str, list[str]] = Field(
        default_factory=lambda: {
            "wait": ["wait", "hold on", "hmm"],
            "however": ["however", "actually"],
            "recheck": ["recheck", "re-check", "double-check", "check again", "let me check"],
            "alternatively": ["alternatively", "on second thought"],
            "aha": ["aha"],
        }
    )
    """Words by bucket, matched in any case on the bytes of the sampled tokens; the first token of
    an occurrence, where the policy decides to reflect, is the one that is measured."""
    clip_low: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Lower bound, below 1, of the PPO clip that the audit compares with."""
    clip_high: float = Field(default=0.2, gt=0.0)
    """Its upper bound, above 1; DAPO's is 0.28."""

    @model_validator(mode="after")
    def _buckets_can_be_told_apart(self) -> Self:
        seen: dict[str, str] = {}
        for bucket, words in self.reflection.items():
            if bucket in RESERVED_BUCKETS or not bucket.isidentifier():
                raise ValueError(
                    f"audit.reflection bucket {bucket!r} must be a name of letters, digits and _ "
                    f"other than {' and '.join(RESERVED_BUCKETS)}"
                )
            if not words:
                raise ValueError(f"audit.reflection.{bucket} has no words; give some or remove it")
            for word in words:
                if not word.strip():
                    raise ValueError(f"audit.reflection.{bucket} holds an empty word; remove it")
                other = seen.setdefault(word.casefold(), bucket)
                if other != bucket:
                    raise ValueError(
                        f"{word!r} is in the buckets {other} and {bucket} of audit.reflection; a "
                        "word belongs to one"
                    )
        return self


class AuditRow(Contract):
    """Sums over the response tokens of one bucket in one update; means come from adding rows up."""

    batch: int = Field(ge=0)
    """Generation batch within the round."""
    off_policy_round: int = Field(ge=1)
    """Number of the update within its batch: 1 is on-policy, 16 the last of the report's 16."""
    bucket: str
    """A bucket of the recipe, `reflection` for all of them together, or `other`."""
    tokens: int = Field(ge=0)
    """Tokens of the bucket."""
    probability_old: float = Field(ge=0.0)
    """Sum of their probabilities before the batch's first update."""
    probability_new: float = Field(ge=0.0)
    """Sum of their probabilities just before this update."""
    ratio: float = Field(ge=0.0)
    """Sum of their ratios to the anchor, before the cap."""
    capped: int = Field(ge=0)
    """Tokens whose ratio lies above the cap."""
    ppo_dropped: int = Field(ge=0)
    """Tokens whose gradient a PPO clip would have dropped."""
    gradient: float = Field(ge=0.0)
    """Sum of |coefficient x weight x advantage|."""
    ppo_dropped_gradient: float = Field(ge=0.0)
    """The same over the tokens that a PPO clip would have dropped."""
