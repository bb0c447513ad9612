"""Checkpoints as artifacts: weights, configuration, optional optimizer state, manifest last."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from longstride.errors import CheckpointError, DataError
from longstride.model.checkpoints import load_model, save_model
from longstride.model.hybrid import HybridModel
from longstride.store.artifacts import digest_of_artifact, open_manifest, record_files
from longstride.store.files import write_json
from schemas.artifacts import CheckpointManifest
from schemas.base import Contract

MANIFEST = "checkpoint.json"
OPTIMIZER = "optimizer.safetensors"


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint read from disk and verified."""

    model: HybridModel
    manifest: CheckpointManifest
    optimizer_state: dict[str, Tensor] | None

    @property
    def digest(self) -> str:
        """Digest of its content."""
        return digest_of_artifact(self.manifest)


def publish_checkpoint(
    model: HybridModel,
    directory: Path,
    *,
    stage: str,
    step: int,
    tokens_seen: int,
    recipe_digest: str,
    parents: Mapping[str, str],
    metrics: Mapping[str, float],
    optimizer_state: dict[str, Tensor] | None = None,
    records: Mapping[str, Contract] = MappingProxyType({}),
) -> CheckpointManifest:
    """Write a checkpoint; its manifest comes last, so an interrupted write is no checkpoint.

    `records` are JSON files, by name, that travel with the weights.
    """
    save_model(model, directory)
    if optimizer_state is not None:
        partial = directory / f".{OPTIMIZER}.partial"
        save_file(optimizer_state, partial)
        os.replace(partial, directory / OPTIMIZER)
    for name, record in records.items():
        write_json(directory / name, record)
    manifest = CheckpointManifest(
        stage=stage,
        files=record_files(directory, exclude=(MANIFEST,)),
        parents=dict(parents),
        recipe_digest=recipe_digest,
        step=step,
        tokens_seen=tokens_seen,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        metrics=dict(metrics),
    )
    write_json(directory / MANIFEST, manifest)
    return manifest


def read_manifest(directory: Path) -> CheckpointManifest:
    """Read and verify the manifest of a checkpoint without loading its weights.

    Raises:
        CheckpointError: The checkpoint is missing, truncated or changed.
    """
    try:
        return open_manifest(directory, "checkpoint", CheckpointManifest, MANIFEST)
    except CheckpointError:
        raise
    except DataError as error:
        raise CheckpointError(str(error)) from error


def open_checkpoint(directory: Path) -> Checkpoint:
    """Load a checkpoint after verifying every file against its manifest.

    Raises:
        CheckpointError: A file is missing, truncated or changed, or a tensor is not what the
            configuration asks for, or is not finite.
    """
    manifest = read_manifest(directory)
    state = None
    path = directory / OPTIMIZER
    if path.is_file():
        try:
            state = load_file(path)
        except SafetensorError as error:
            raise CheckpointError(f"{path} is corrupt ({error}); rerun its stage") from error
    return Checkpoint(load_model(directory), manifest, state)


def pass_through(source: Path, directory: Path) -> CheckpointManifest:
    """Make `directory` the same checkpoint as `source`, sharing files where the disk allows."""
    manifest = read_manifest(source)
    directory.mkdir(parents=True, exist_ok=True)
    for name in manifest.files:
        target = directory / name
        target.unlink(missing_ok=True)
        try:
            os.link(source / name, target)
        except OSError:
            # Another device, or a file system without hard links.
            shutil.copy2(source / name, target)
    write_json(directory / MANIFEST, manifest)
    return manifest
