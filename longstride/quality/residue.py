"""Near-duplicates that are left in an artifact, found in bounded memory."""

from __future__ import annotations

import mmap
from array import array
from pathlib import Path
from types import TracebackType
from typing import Self

from longstride.data.measures.minhash import shingle_set
from longstride.data.measures.words import Hashes, WordHasher
from longstride.data.near import NearDuplicates
from schemas.rows import Document


class Residue:
    """Documents of a JSONL file that nearly repeat an earlier one, by line.

    Band keys lie on disk; only candidates are read again from the file, whose line offsets (8 bytes
    a line) are looked up when the first candidate is.
    """

    def __init__(self, path: Path, scratch: Path, hasher: WordHasher) -> None:
        """Watch the documents of `path`; `scratch` is a directory for band keys."""
        self._path, self._hasher = path, hasher
        self._near = NearDuplicates(scratch / "bands.bin", self._shingles)
        self._offsets: array[int] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        self._near.close()

    def add(self, line: int, words_W: Hashes) -> None:
        """Add the document of a line (from 0) by the hashes of its words."""
        self._near.add(line, shingle_set(words_W))

    def find(self) -> set[int]:
        """Lines whose document nearly repeats an earlier one."""
        return self._near.find()

    def _shingles(self, line: int) -> Hashes:
        if self._offsets is None:
            self._offsets = _line_offsets(self._path)
        with self._path.open("rb") as stream:
            stream.seek(self._offsets[line])
            document = Document.model_validate_json(stream.readline())
        return shingle_set(self._hasher.hashes(document.text))


def _line_offsets(path: Path) -> array[int]:
    offsets = array("Q", [0])
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
        at = view.find(b"\n")
        while at != -1:
            offsets.append(at + 1)
            at = view.find(b"\n", at + 1)
    return offsets
