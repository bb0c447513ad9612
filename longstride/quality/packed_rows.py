"""Packed rows as arrays, read and checked for shape.

Shape suffixes: N rows, T tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longstride.errors import DataError
from longstride.quality.frame import RowFacts, require_rows
from longstride.store.files import read_jsonl
from schemas.rows import PackedRow

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Packed:
    """A packed artifact."""

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


def read_packed(directory: Path) -> Packed:
    """Read tensors and records.

    Raises:
        DataError: The tensor file is corrupt, lacks a tensor, shapes differ, or records and rows do
            not match in number.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import load_file

    path = directory / "packed.safetensors"
    try:
        tensors = load_file(path)
    except FileNotFoundError as error:
        raise DataError(f"{path} does not exist; rerun the packing step") from error
    except (SafetensorError, KeyError) as error:
        raise DataError(f"{path} is truncated or corrupt ({error}); rerun the packing") from error
    records = list(read_jsonl(directory / "rows.jsonl", PackedRow))
    require_rows(records, directory / "rows.jsonl", "rows")
    arrays: list[Ints] = []
    for name in ("tokens_NT", "segments_NT", "positions_NT", "loss_mask_NT"):
        if name not in tensors:
            raise DataError(f"{path} lacks tensor {name!r}, it holds {sorted(tensors)}")
        array = tensors[name]
        if array.ndim != 2 or array.shape[0] != len(records) or array.dtype.kind not in "iu":
            raise DataError(
                f"{path}: tensor {name!r} is {array.dtype} {list(array.shape)}, expected integers "
                f"[{len(records)}, window]: rows.jsonl has {len(records)} rows"
            )
        if arrays and array.shape != arrays[0].shape:
            raise DataError(
                f"{path}: tensor {name!r} is {list(array.shape)}, tokens_NT is "
                f"{list(arrays[0].shape)}"
            )
        arrays.append(array.astype(np.int64))
    tokens, segments, positions, mask = arrays
    return Packed(tokens, segments, positions, mask, records)


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


def base_facts(packed: Packed, vocabulary: int) -> list[RowFacts]:
    """Facts of each row that hold for every kind of packing; `vocabulary` bounds token ids."""
    ordered, restarting = ordered_N(packed), restarting_N(packed)
    outside_NT: Flags = (packed.tokens_NT < 0) | (packed.tokens_NT >= vocabulary)
    outside_N: Flags = np.asarray(outside_NT.any(axis=1))
    on_padding_N = ((packed.mask_NT != 0) & ~packed.real_NT).sum(axis=1)
    blind_N = ((packed.mask_NT != 0) & packed.starts_NT).sum(axis=1)
    binary_N: Flags = np.asarray(np.isin(packed.mask_NT, (0, 1)).all(axis=1))
    padding_N = (~packed.real_NT).sum(axis=1)
    seen: set[bytes] = set()
    facts: list[RowFacts] = []
    for number, record in enumerate(packed.records):
        key = packed.tokens_NT[number].tobytes()
        facts.append(
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
                "duplicate": key in seen,
            }
        )
        seen.add(key)
    return facts
