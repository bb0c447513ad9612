"""Where text, tasks and mixtures come from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Contract
from schemas.cleaning import CleaningConfig
from schemas.rows import Domain


class _Source(Contract):
    name: str = Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Name of the source in provenance and reports."""
    domain: Domain
    """Mixture share that its documents count towards."""


class StandardLibrarySource(_Source):
    """Source code and docstrings that ship with the running Python interpreter."""

    kind: Literal["standard_library"]
    """Discriminator."""
    part: Literal["code", "docstrings"]
    """Modules as code, or the prose of their docstrings."""


class PackageDocumentationSource(_Source):
    """Documentation prose that ships inside installed packages (readme, docstrings)."""

    kind: Literal["package_documentation"]
    """Discriminator."""
    packages: list[str] = Field(min_length=1)
    """Distributions to read, by import name."""


class ReasoningGymSource(_Source):
    """Generated reasoning problems with their answers, as running text."""

    kind: Literal["reasoning_gym"]
    """Discriminator."""
    documents: int = Field(ge=1)
    """Problems to generate."""


class FileSource(_Source):
    """Text of your own: a folder of text files, JSONL (also .gz, .zst), Parquet or Arrow."""

    kind: Literal["files"]
    """Discriminator."""
    uri: str = Field(min_length=1)
    """A local path, file:// or s3:// location; a folder is read recursively."""
    text_field: str = "text"
    """Column or key that holds the text in tables and JSONL."""
    split: str = Field(default="train", min_length=1)
    """Split to read where the folder is a saved Hugging Face data set with several."""


Source = Annotated[
    StandardLibrarySource | PackageDocumentationSource | ReasoningGymSource | FileSource,
    Field(discriminator="kind"),
]


def require_distribution(mixture: Mapping[Domain, float]) -> None:
    """Refuse shares that are negative or do not sum to 1.

    Raises:
        ValueError: Names the shares and their sum.
    """
    total = sum(mixture.values())
    if abs(total - 1.0) > 1e-6 or min(mixture.values()) < 0:
        raise ValueError(
            f"mixture shares must be >= 0 and sum to 1, got {mixture} (sum {total:g}); rescale the "
            "shares"
        )


class DataConfig(Contract):
    """The pretraining corpus: sources and the mixture they are drawn to."""

    sources: list[Source] = Field(min_length=1)
    """Every place that text comes from."""
    mixture: dict[Domain, float] = Field(min_length=1)
    """Target share of characters by domain; shares sum to 1."""
    characters: int = Field(default=2_000_000, ge=10_000)
    """Characters of the corpus after mixing."""
    document_characters: int = Field(default=6_000, ge=200)
    """Longest document; longer ones are split at a line boundary."""
    minimum_characters: int = Field(default=80, ge=1)
    """Shorter documents are dropped."""
    cleaning: CleaningConfig | None = Field(default_factory=CleaningConfig)
    """What is dropped or mended between reading and mixing; null: only what is short or a copy."""

    @model_validator(mode="after")
    def _mixture_is_a_distribution(self) -> Self:
        require_distribution(self.mixture)
        offered = {source.domain for source in self.sources}
        missing = sorted(d for d, share in self.mixture.items() if share > 0 and d not in offered)
        if missing:
            raise ValueError(
                f"mixture asks for {missing} but no source has that domain (sources offer "
                f"{sorted(offered)}); add a source or set the share to 0"
            )
        names = [source.name for source in self.sources]
        if len(set(names)) != len(names):
            raise ValueError(f"source names must be unique, got {names}; rename one")
        return self

    @property
    def reasoning_related_share(self) -> float:
        """Share of stem + code + book + reasoning; the M1 report raises it to 70%."""
        return sum(s for d, s in self.mixture.items() if d != "web")


class ProbeConfig(Contract):
    """Key-value probes among the rows of a long-context stage, in cells of length x depth."""

    per_cell: int = Field(default=20, ge=1)
    """Probes of each cell."""
    length_shares: list[float] = Field(default=[0.25, 0.5, 1.0], min_length=1)
    """Lengths, as shares of the window."""
    depths: list[float] = Field(default=[0.0, 0.25, 0.5, 0.75, 1.0], min_length=1)
    """Where the value is said, as a share of the text before the question."""
    maximum_share: float = Field(default=0.2, gt=0.0, lt=1.0)
    """Largest share of the stage's tokens that probes may take."""

    @model_validator(mode="after")
    def _shares_are_shares(self) -> Self:
        for name in ("length_shares", "depths"):
            bad = [value for value in getattr(self, name) if not 0.0 <= value <= 1.0]
            if bad or (name == "length_shares" and 0.0 in self.length_shares):
                raise ValueError(f"{name} has {bad or [0.0]}; give shares between 0 and 1")
        return self


class TaskLevel(Contract):
    """One difficulty level of a task family."""

    parameters: dict[str, int | float | bool | str | list[int]]
    """Arguments of the reasoning-gym generator."""
    weight: float = Field(default=1.0, gt=0.0)
    """Relative frequency of this level within its family in SFT and RL data."""


class TaskFamily(Contract):
    """A family of verifiable tasks, from easy to hard."""

    name: str = Field(min_length=1)
    """reasoning-gym dataset name."""
    levels: list[TaskLevel] = Field(min_length=1)
    """Difficulty levels, ascending; longer answers come later."""
    weight: float = Field(default=1.0, gt=0.0)
    """Relative frequency of the family."""
