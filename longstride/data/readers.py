"""One reader for every kind of source."""

from __future__ import annotations

from collections.abc import Iterator
from typing import assert_never

from longstride.data.files.reading import read_files
from longstride.data.installed import package_documentation, standard_library
from longstride.data.text import Quarantine
from longstride.data.worked_problems import worked_problems
from schemas.data import (
    FileSource,
    PackageDocumentationSource,
    ReasoningGymSource,
    Source,
    StandardLibrarySource,
    TaskFamily,
)
from schemas.rows import Document


def read_documents(
    source: Source, *, seed: int, tasks: list[TaskFamily], quarantine: Quarantine
) -> Iterator[Document]:
    """Yield the documents of a source as they are; text is checked, not yet normalised.

    A row that cannot be used goes to `quarantine` with `file:row` and the reason; every row is
    either yielded or quarantined. Files that ship with the interpreter or a package come in an
    order shuffled by `seed`, so that a reader may stop early without bias.

    Raises:
        DataError: The source as a whole cannot be read, for example a missing folder or column.
    """
    match source:
        case StandardLibrarySource():
            return standard_library(source, seed, quarantine)
        case PackageDocumentationSource():
            return package_documentation(source, seed, quarantine)
        case ReasoningGymSource():
            return worked_problems(source, seed, tasks)
        case FileSource():
            return read_files(source, quarantine)
        case _:
            assert_never(source)
