"""What a measuring function gets: verified artifacts, the stage and the recipe."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from longstride.errors import DataError, GateCouldNotRun
from longstride.store.artifacts import digest_of_artifact
from schemas.artifacts import ArtifactManifest
from schemas.recipe import Recipe


@dataclass(frozen=True)
class Artifact:
    """An artifact whose files match their digests."""

    path: Path
    manifest: ArtifactManifest

    @property
    def digest(self) -> str:
        """Content digest."""
        return digest_of_artifact(self.manifest)


@dataclass(frozen=True)
class Subject:
    """One gate's inputs."""

    stage: str
    recipe: Recipe
    subject: Artifact
    reference: Artifact | None

    @property
    def path(self) -> Path:
        """Directory of the measured artifact."""
        return self.subject.path

    @property
    def against(self) -> Path:
        """Directory of the reference.

        Raises:
            GateCouldNotRun: The edge was given none.
        """
        if self.reference is None:
            raise GateCouldNotRun(f"stage {self.stage!r} was given no artifact to measure against")
        return self.reference.path


@contextmanager
def reference_faults(what: str) -> Iterator[None]:
    """Turn a fault of the reference into "could not run": it says nothing about the subject."""
    try:
        yield
    except DataError as error:
        raise GateCouldNotRun(f"{what} cannot be used to measure with: {error}") from error
