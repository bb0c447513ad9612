"""Artifacts are directories whose manifest is published last: half-written is not there."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import TypeVar

from longstride.errors import DataError
from longstride.store.files import read_json, write_json
from schemas.artifacts import ArtifactKind, ArtifactManifest, FileRecord
from schemas.base import digest_of

MANIFEST = "manifest.json"

Manifest = TypeVar("Manifest", bound=ArtifactManifest)


def file_record(path: Path) -> FileRecord:
    """Digest and size of a file, read in blocks."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    return FileRecord(sha256=digest.hexdigest(), size=path.stat().st_size)


def record_files(
    directory: Path, *, exclude: tuple[str, ...] = (MANIFEST,)
) -> dict[str, FileRecord]:
    """Records of all files below a directory by relative POSIX path, without dot files."""
    return {
        path.relative_to(directory).as_posix(): file_record(path)
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name not in exclude and not path.name.startswith(".")
    }


def publish(
    directory: Path,
    kind: ArtifactKind,
    stage: str,
    *,
    parents: Mapping[str, str] | None = None,
    recipe_digest: str = "",
    counts: Mapping[str, int] | None = None,
) -> ArtifactManifest:
    """Write the manifest of a finished artifact directory and return it."""
    manifest = ArtifactManifest(
        kind=kind,
        stage=stage,
        files=record_files(directory),
        parents=dict(parents or {}),
        recipe_digest=recipe_digest,
        counts=dict(counts or {}),
    )
    write_json(directory / MANIFEST, manifest)
    return manifest


def open_artifact(directory: Path, kind: ArtifactKind) -> ArtifactManifest:
    """Read an artifact's manifest and verify every file against it.

    Raises:
        DataError: The manifest is missing or malformed, the kind differs, or a file is missing,
            truncated or changed.
    """
    return open_manifest(directory, kind, ArtifactManifest, MANIFEST)


def open_manifest(
    directory: Path, kind: ArtifactKind, model: type[Manifest], manifest_name: str
) -> Manifest:
    """The same for a manifest of another type under another name."""
    if not (directory / manifest_name).is_file():
        raise DataError(
            f"{directory} has no {manifest_name}: it was never published, or it is not a {kind} "
            "artifact; run the step that makes it again"
        )
    manifest = read_json(directory / manifest_name, model)
    if manifest.kind != kind:
        raise DataError(f"{directory} holds a {manifest.kind} artifact, but a {kind} was expected")
    for name, record in manifest.files.items():
        path = directory / name
        if not path.is_file():
            raise DataError(f"{path} is missing although {manifest_name} lists it")
        size = path.stat().st_size
        if size != record.size:
            raise DataError(
                f"{path} has {size} bytes, {manifest_name} says {record.size}: truncated?"
            )
        if file_record(path).sha256 != record.sha256:
            raise DataError(f"{path} does not match its sha256 in {manifest_name}: it was changed")
    return manifest


def digest_of_artifact(manifest: ArtifactManifest) -> str:
    """Content digest of an artifact: over its files only, not over who made it."""
    return digest_of({name: record.sha256 for name, record in sorted(manifest.files.items())})
