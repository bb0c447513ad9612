"""Packed rows as tensors, cut into steps and microbatches.

Dimension suffixes: N = rows of the artifact, B = rows of a microbatch, T = window.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from longstride.errors import DataError
from longstride.store.artifacts import digest_of_artifact, open_artifact

PACKED = "packed.safetensors"
FIELDS = ("tokens_NT", "segments_NT", "positions_NT", "loss_mask_NT")


@dataclass(frozen=True)
class PackedRows:
    """Rows of exactly `window` tokens."""

    tokens_NT: Tensor
    segments_NT: Tensor
    positions_NT: Tensor
    loss_mask_NT: Tensor
    digest: str = ""

    @property
    def rows(self) -> int:
        """Number of rows."""
        return self.tokens_NT.shape[0]

    @property
    def window(self) -> int:
        """Tokens of a row."""
        return self.tokens_NT.shape[1]

    def take(self, index: Tensor) -> PackedRows:
        """Rows by index."""
        return PackedRows(
            self.tokens_NT[index],
            self.segments_NT[index],
            self.positions_NT[index],
            self.loss_mask_NT[index],
        )

    def to(self, device: torch.device) -> PackedRows:
        """The same rows on a device."""
        if self.tokens_NT.device == device:
            return self
        return PackedRows(
            self.tokens_NT.to(device),
            self.segments_NT.to(device),
            self.positions_NT.to(device),
            self.loss_mask_NT.to(device),
        )

    def microbatches(self, maximum_tokens: int) -> Iterator[PackedRows]:
        """Cut into pieces of at most `maximum_tokens` tokens, at least one row each."""
        size = max(1, maximum_tokens // self.window)
        for start in range(0, self.rows, size):
            yield self.take(torch.arange(start, min(self.rows, start + size)))


def open_packed(directory: Path, vocabulary: int) -> PackedRows:
    """Read packed rows and check that a model with `vocabulary` entries can take them.

    Raises:
        DataError: The artifact is damaged, empty, or holds token ids outside the vocabulary.
    """
    kind_manifest = open_artifact(directory, "packed")
    path = directory / PACKED
    try:
        tensors = load_file(path)
    except (SafetensorError, FileNotFoundError) as error:
        raise DataError(f"{path} cannot be read ({error}); pack the data again") from error
    missing = [name for name in FIELDS if name not in tensors]
    if missing:
        raise DataError(f"{path} lacks {', '.join(missing)}; pack the data again")
    rows = PackedRows(
        tensors["tokens_NT"].long(),
        tensors["segments_NT"].long(),
        tensors["positions_NT"].long(),
        tensors["loss_mask_NT"].bool(),
        digest_of_artifact(kind_manifest),
    )
    if rows.rows == 0:
        raise DataError(f"{path} has no rows; the corpus is too small for this window")
    largest = int(rows.tokens_NT.max())
    if largest >= vocabulary:
        raise DataError(
            f"{path} holds token id {largest} but the model has {vocabulary} entries; the "
            "tokenizer and the model do not belong together"
        )
    return rows


class RowCursor:
    """Draws the rows of each step: a fresh permutation each pass, no row twice within one."""

    def __init__(self, rows: int, rows_per_step: int, seed: int) -> None:
        self._rows, self._rows_per_step = rows, rows_per_step
        self._generator = torch.Generator().manual_seed(seed)
        self._pool = torch.empty(0, dtype=torch.long)

    def next(self) -> Tensor:
        """Row indices of the next step."""
        while len(self._pool) < self._rows_per_step:
            order = torch.randperm(self._rows, generator=self._generator)
            self._pool = torch.cat([self._pool, order])
        index = self._pool[: self._rows_per_step]
        self._pool = self._pool[self._rows_per_step :]
        return index

    def state(self) -> dict[str, Tensor]:
        """What is left of this pass, and the generator of the next ones."""
        return {"pool": self._pool.clone(), "generator": self._generator.get_state()}

    def load_state(self, tensors: dict[str, Tensor]) -> None:
        """Go on where `state` was taken."""
        self._pool = tensors["pool"]
        self._generator.set_state(tensors["generator"])


def step_indices(rows: int, rows_per_step: int, steps: int, seed: int) -> Iterator[Tensor]:
    """Row indices of `steps` steps from the start."""
    cursor = RowCursor(rows, rows_per_step, seed)
    return (cursor.next() for _ in range(steps))
