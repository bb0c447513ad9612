"""Near-duplicates of a corpus that does not fit into memory.

The same decisions as `measures.minhash.near_duplicates`: band keys lie on disk, one band at a time
is sorted in memory (16 bytes a document), and only candidates are read again and compared.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

import numpy as np
import numpy.typing as npt

from longstride.data.measures.minhash import BANDS, COMPARED, SIMILARITY, band_keys, jaccard
from longstride.data.measures.words import Hashes

_REMEMBERED = 256


class NearDuplicates:
    """Documents that nearly repeat an earlier one, by index."""

    def __init__(self, path: Path, shingles_of: Callable[[int], Hashes]) -> None:
        """Open an empty file of band keys; `shingles_of` reads a document's shingles again."""
        self._stream = path.open("wb+")
        self._path = path
        self._documents = array("Q")
        self._decided = 0
        self._found: set[int] = set()
        self._shingles_of = lru_cache(maxsize=_REMEMBERED)(shingles_of)

    def close(self) -> None:
        """Close the file."""
        self._stream.close()

    def add(self, document: int, shingles: Hashes) -> None:
        """Add the next document by its shingles; one without any is nobody's duplicate."""
        if len(shingles):
            self._documents.append(document)
            self._stream.write(band_keys(shingles).tobytes())

    def find(self) -> set[int]:
        """Documents added so far that nearly repeat an earlier one."""
        count = len(self._documents)
        if count > self._decided:
            self._stream.flush()
            keys = np.memmap(self._path, dtype=np.uint64, mode="r", shape=(count, BANDS))
            for band in range(BANDS):
                self._compare(np.ascontiguousarray(keys[:, band]))
            del keys
            self._decided = count
        return self._found

    def _compare(self, keys: npt.NDArray[np.uint64]) -> None:
        order = np.argsort(keys, kind="stable")
        ordered = keys[order]
        ends = np.flatnonzero(np.diff(ordered) != 0) + 1
        starts, ends = np.concatenate([[0], ends]), np.append(ends, len(order))
        for bucket in np.flatnonzero(ends - starts > 1):
            members = order[starts[bucket] : ends[bucket]]
            if members[-1] >= self._decided:
                self._compare_bucket(members.tolist())

    def _compare_bucket(self, members: list[int]) -> None:
        documents = [self._documents[member] for member in members]
        for place in range(1, len(members)):
            document = documents[place]
            if members[place] < self._decided or document in self._found:
                continue
            own = self._shingles_of(document)
            if any(
                jaccard(own, self._shingles_of(earlier)) >= SIMILARITY
                for earlier in documents[: min(place, COMPARED)]
            ):
                self._found.add(document)
