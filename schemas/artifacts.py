"""Manifests: what an artifact is, where it came from, and whether it is whole."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from schemas.base import Contract

ArtifactKind = Literal[
    "recipe", "documents", "tokenizer", "packed", "chat", "prompts", "checkpoint", "rollouts",
    "ladder_state", "verdict", "eval", "report", "sources",
]  # fmt: skip


class FileRecord(Contract):
    """One file of an artifact."""

    sha256: str
    """Hex digest of the bytes."""
    size: int = Field(ge=0)
    """Size in bytes."""


class ArtifactManifest(Contract):
    """Published last and atomically: an artifact without its manifest does not exist.

    It holds no times, so that equal content gives an equal manifest.
    """

    kind: ArtifactKind
    """What the artifact is."""
    stage: str
    """Stage that made it."""
    files: dict[str, FileRecord]
    """Every file by relative path."""
    parents: dict[str, str] = Field(default_factory=dict)
    """Digest of each input artifact by name."""
    recipe_digest: str = ""
    """Digest of the resolved recipe."""
    counts: dict[str, int] = Field(default_factory=dict)
    """Row counts and the like."""


class CheckpointManifest(ArtifactManifest):
    """Manifest of a checkpoint directory."""

    kind: Literal["checkpoint"] = "checkpoint"
    """Always `checkpoint`."""
    step: int = Field(ge=0)
    """Optimizer steps taken in the stage."""
    tokens_seen: int = Field(ge=0)
    """Tokens trained on since the first stage."""
    parameters: int = Field(ge=1)
    """Number of parameters."""
    metrics: dict[str, float] = Field(default_factory=dict)
    """Final metrics of the stage, for example `loss`."""
