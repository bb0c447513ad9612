"""Packed rows as arrays, read in blocks and checked for shape.

Shape suffixes: N rows, T tokens of a row.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from longstride.errors import DataError
from longstride.quality.frame import Columns, RowFacts, Seen, require_rows
from longstride.store.files import read_jsonl
from schemas.rows import PackedRow

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Packed:
    """A block of rows of a packed artifact."""

    tokens_NT: Ints
    segments_NT: Ints
    positions_NT: Ints
    mask_NT: Ints
    records: list[PackedRow]

    @property
    def window(self) -> int:
        """T."""
        return int(self.tokens_NT.shape[1])

    @property
    def real_NT(self) -> Flags:
        """True on tokens, False on padding."""
        return self.segments_NT >= 0

    @property
    def starts_NT(self) -> Flags:
        """True where a segment begins."""
        starts = self.real_NT.copy()
        starts[:, 1:] &= self.segments_NT[:, 1:] != self.segments_NT[:, :-1]
        return starts


TENSORS: Final = ("tokens_NT", "segments_NT", "positions_NT", "loss_mask_NT")
_BLOCK_TOKENS: Final = 1 << 20
"""Tokens of a block of rows; 32 MiB of int64 in four arrays."""


def read_blocks(directory: Path) -> Iterator[Packed]:
    """Read tensors and records in blocks of rows, in order.

    Raises:
        DataError: The tensor file is corrupt, lacks a tensor, shapes differ, or records and rows do
            not match in number.
    """
    from safetensors import SafetensorError, safe_open

    path = directory / "packed.safetensors"
    try:
        opened = safe_open(path, framework="np")
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; rerun the packing step") from error
    except (SafetensorError, KeyError) as error:
        raise DataError(f"{path} is truncated or corrupt ({error}); rerun the packing") from error
    with opened as tensors:
        rows, window = _shape(path, tensors)
        records = read_jsonl(directory / "rows.jsonl", PackedRow)
        block = max(1, _BLOCK_TOKENS // max(1, window))
        found = 0
        while chosen := list(islice(records, block)):
            found += len(chosen)
            if found > rows:
                found += sum(1 for _ in records)
                break
            part = slice(found - len(chosen), found)
            tokens, segments, positions, mask = (
                tensors.get_slice(name)[part].astype(np.int64) for name in TENSORS
            )
            yield Packed(tokens, segments, positions, mask, chosen)
    require_rows(found, directory / "rows.jsonl", "rows")
    if found != rows:
        raise DataError(
            f"{path}: tensor {TENSORS[0]!r} has {rows} rows, expected [{found}, window]: "
            f"rows.jsonl has {found} rows"
        )


def _shape(path: Path, tensors: Any) -> tuple[int, int]:
    names = set(tensors.keys())
    shapes: list[list[int]] = []
    for name in TENSORS:
        if name not in names:
            raise DataError(f"{path} lacks tensor {name!r}, it holds {sorted(names)}")
        view = tensors.get_slice(name)
        shape, kind = list(view.get_shape()), str(view.get_dtype())
        if len(shape) != 2 or not kind.startswith(("I", "U")):
            raise DataError(f"{path}: tensor {name!r} is {kind} {shape}, expected integers [N, T]")
        if shapes and shape != shapes[0]:
            raise DataError(f"{path}: tensor {name!r} is {shape}, tokens_NT is {shapes[0]}")
        shapes.append(shape)
    rows, window = shapes[0]
    return rows, window


def ordered_N(packed: Packed) -> Flags:
    """Rows whose segments are 0, 1, 2 ... in order, then only padding."""
    segments = packed.segments_NT
    steps = np.diff(segments, axis=1)
    padded = segments[:, 1:] == -1
    continues = (steps == 0) | (steps == 1)
    # After padding nothing may follow, and padding is the only other way to go on.
    fine = np.where(padded, True, continues & (segments[:, :-1] >= 0)).all(axis=1)
    first_ok = segments[:, 0] == 0
    return np.asarray(fine & first_ok & (segments >= -1).all(axis=1))


def restarting_N(packed: Packed) -> Flags:
    """Rows whose positions count 0, 1, 2 ... from the start of each segment."""
    index_NT = np.broadcast_to(np.arange(packed.window), packed.tokens_NT.shape)
    first_NT = np.maximum.accumulate(np.where(packed.starts_NT, index_NT, 0), axis=1)
    wrong = (packed.positions_NT != index_NT - first_NT) & packed.real_NT
    return np.asarray(~wrong.any(axis=1))


def segment_lengths(packed: Packed, row: int) -> Ints:
    """Tokens of each segment of a row, by segment index."""
    segments = packed.segments_NT[row]
    return np.bincount(segments[segments >= 0])


def record_problem(packed: Packed, row: int) -> bool:
    """Whether the side record disagrees with the tensors."""
    record = packed.records[row]
    lengths = segment_lengths(packed, row)
    real = int(lengths.sum())
    return not (
        record.window == packed.window
        and record.padding_tokens == packed.window - real
        and record.target_tokens == int(packed.mask_NT[row].sum())
        and len(record.documents) == len(lengths)
        and record.longest_document_tokens == int(lengths.max(initial=0))
        and sum(record.domain_tokens.values()) == real
    )


BASE_COLUMNS: Final[Columns] = {
    "id": "text",
    "segments_ordered": "flag",
    "positions_restart": "flag",
    "token_outside_vocabulary": "flag",
    "targets_on_padding": "count",
    "targets_without_context": "count",
    "mask_binary": "flag",
    "padding_tokens": "count",
    "target_tokens": "count",
    "record_disagrees": "flag",
    "duplicate": "flag",
}


def base_facts(packed: Packed, vocabulary: int, seen: Seen) -> list[RowFacts]:
    """Facts of each row that hold for every kind of packing; `vocabulary` bounds token ids."""
    ordered, restarting = ordered_N(packed), restarting_N(packed)
    outside_NT: Flags = (packed.tokens_NT < 0) | (packed.tokens_NT >= vocabulary)
    outside_N: Flags = np.asarray(outside_NT.any(axis=1))
    on_padding_N = ((packed.mask_NT != 0) & ~packed.real_NT).sum(axis=1)
    blind_N = ((packed.mask_NT != 0) & packed.starts_NT).sum(axis=1)
    binary_N: Flags = np.asarray(np.isin(packed.mask_NT, (0, 1)).all(axis=1))
    padding_N = (~packed.real_NT).sum(axis=1)
    return [
        {
            "id": record.id,
            "segments_ordered": bool(ordered[number]),
            "positions_restart": bool(restarting[number]),
            "token_outside_vocabulary": bool(outside_N[number]),
            "targets_on_padding": int(on_padding_N[number]),
            "targets_without_context": int(blind_N[number]),
            "mask_binary": bool(binary_N[number]),
            "padding_tokens": int(padding_N[number]),
            "target_tokens": int(packed.mask_NT[number].sum()),
            "record_disagrees": record_problem(packed, number),
            "duplicate": seen.again(sha256(packed.tokens_NT[number].tobytes()).digest()),
        }
        for number, record in enumerate(packed.records)
    ]
