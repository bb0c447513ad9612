"""Safetensors files read with numpy alone, tensor by tensor, so that no framework is imported."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np

from longstride.errors import CheckpointError

_BYTES: Final = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "F8_E4M3": 1, "F8_E5M2": 1, "I64": 8, "I32": 4,
    "I16": 2, "I8": 1, "U8": 1, "U16": 2, "U32": 4, "U64": 8, "BOOL": 1,
}  # fmt: skip
_FLOATS: Final = {"F64": np.float64, "F32": np.float32, "F16": np.float16}
_BLOCK: Final = 1 << 22
_FIX: Final = "restore the checkpoint, or rerun the stage that wrote it"


@dataclass(frozen=True)
class TensorFacts:
    """What is known of one tensor after one pass over its values."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    not_finite: int
    """NaN or infinite values; 0 for integers."""
    all_zero: bool


def tensor_facts(path: Path) -> Iterator[TensorFacts]:
    """Yield the facts of every tensor, reading in blocks.

    Raises:
        CheckpointError: The file is missing, truncated or malformed; names the tensor.
    """
    try:
        size = path.stat().st_size
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; {_FIX}") from error
    with path.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if not 2 <= length <= size - 8:
            raise CheckpointError(f"{path} is truncated or no safetensors file; {_FIX}")
        try:
            header = json.loads(stream.read(length))
        except ValueError as error:
            raise CheckpointError(f"{path} has a corrupt header ({error}); {_FIX}") from error
        if not isinstance(header, dict):
            raise CheckpointError(f"{path} has a corrupt header; {_FIX}")
        header.pop("__metadata__", None)
        for name, entry in sorted(header.items()):
            dtype, shape, begin, end = _entry(path, name, entry, size - 8 - length)
            stream.seek(8 + length + begin)
            bad, zero = 0, True
            left = end - begin
            while left:
                block = stream.read(min(left, _BLOCK))
                left -= len(block)
                zero = zero and not any(block.strip(b"\0"))
                bad += _not_finite(block, dtype)
            yield TensorFacts(name, dtype, shape, bad, zero)


def _entry(
    path: Path, name: str, entry: object, available: int
) -> tuple[str, tuple[int, ...], int, int]:
    try:
        if not isinstance(entry, dict):
            raise TypeError(f"a {type(entry).__name__}, not a record")
        dtype, shape = str(entry["dtype"]), tuple(int(size) for size in entry["shape"])
        begin, end = (int(offset) for offset in entry["data_offsets"])
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: tensor {name!r} has a corrupt record; {_FIX}") from error
    if dtype not in _BYTES:
        raise CheckpointError(f"{path}: tensor {name!r} has unknown type {dtype!r}; {_FIX}")
    if not 0 <= begin <= end <= available or end - begin != math.prod(shape) * _BYTES[dtype]:
        raise CheckpointError(
            f"{path}: tensor {name!r} ({dtype} {list(shape)}) has bytes {begin} to {end} of "
            f"{available}: the file is truncated or corrupt; {_FIX}"
        )
    return dtype, shape, begin, end


def _not_finite(block: bytes, dtype: str) -> int:
    if dtype == "BF16":
        # A bfloat16 is not finite when all eight bits of its exponent are set.
        exponent = np.frombuffer(block, dtype="<u2") & 0x7F80
        return int((exponent == 0x7F80).sum())
    if dtype not in _FLOATS:
        return 0
    values = np.frombuffer(block, dtype=np.dtype(_FLOATS[dtype]).newbyteorder("<"))
    return len(values) - int(np.isfinite(values).sum())
