"""Documents on disk with a small index in memory, and a set of digests.

A document costs 44 bytes of memory in the spool and about 20 in the set, whatever its length.
"""

from __future__ import annotations

from array import array
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longstride.data.text import order_key
from schemas.rows import Document

Indices = npt.NDArray[np.int64]


class DigestSet:
    """A set of 64-bit keys in 8 bytes a slot (open addressing, linear probing)."""

    def __init__(self) -> None:
        """Start empty."""
        self._slots = array("Q", bytes(8 * 1024))
        self._size = 0

    def __len__(self) -> int:
        """Keys in the set."""
        return self._size

    def add(self, key: int) -> bool:
        """Add a key; whether it was new."""
        key = key or 1  # 0 marks a free slot
        if 10 * self._size > 6 * len(self._slots):
            self._grow()
        place = _free_or_own(self._slots, key)
        if self._slots[place] == key:
            return False
        self._slots[place] = key
        self._size += 1
        return True

    def _grow(self) -> None:
        old, self._slots = self._slots, array("Q", bytes(16 * len(self._slots)))
        for key in old:
            if key:
                self._slots[_free_or_own(self._slots, key)] = key


def _free_or_own(slots: array[int], key: int) -> int:
    mask = len(slots) - 1
    place = (key * 0x9E3779B97F4A7C15 >> 32) & mask
    while slots[place] and slots[place] != key:
        place = (place + 1) & mask
    return place


class Spool:
    """Documents written once, in order, and read again by index."""

    def __init__(self, path: Path, seed: int) -> None:
        """Open an empty spool."""
        self._stream = path.open("wb+")
        self._seed = seed
        self._end = 0
        self._offsets = array("Q")
        self._sizes = array("I")
        self._characters = array("I")
        self._row_keys = array("Q")
        self._own_keys = array("Q")

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def __len__(self) -> int:
        """Documents written."""
        return len(self._offsets)

    def append(self, document: Document, row: str) -> int:
        """Write a document of a row, named by the row's first document; return its index."""
        data = document.model_dump_json().encode() + b"\n"
        self._stream.seek(self._end)
        self._stream.write(data)
        self._offsets.append(self._end)
        self._sizes.append(len(data))
        self._characters.append(len(document.text))
        self._row_keys.append(_key(self._seed, "mixture", row))
        self._own_keys.append(_key(self._seed, "corpus", document.id))
        self._end += len(data)
        return len(self._offsets) - 1

    def line(self, index: int) -> bytes:
        """One document as a line of JSON."""
        self._stream.seek(self._offsets[index])
        return self._stream.read(self._sizes[index])

    def document(self, index: int) -> Document:
        """One document."""
        return Document.model_validate_json(self.line(index))

    def characters(self, indices: Indices) -> int:
        """Characters of some documents."""
        return int(np.frombuffer(self._characters, dtype=np.uint32)[indices].sum(dtype=np.int64))

    def sampled(self, indices: Indices) -> Indices:
        """Documents in an order shuffled by row; those of one row follow one another."""
        keys = np.frombuffer(self._row_keys, dtype=np.uint64)[indices]
        return indices[np.argsort(keys, kind="stable")]

    def shuffled(self, indices: Indices) -> Indices:
        """Documents in an order shuffled by document."""
        keys = np.frombuffer(self._own_keys, dtype=np.uint64)[indices]
        return indices[np.argsort(keys, kind="stable")]


def _key(seed: int, *parts: str) -> int:
    return int.from_bytes(order_key(seed, *parts)[:8], "big")
