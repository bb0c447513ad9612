"""Files of one's own as artifacts, so that a gate can judge what no pipeline wrote."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from longstride.errors import UsageError
from longstride.store.artifacts import MANIFEST, publish
from longstride.store.files import atomic_write, write_json
from schemas.artifacts import ArtifactKind

ROWS: Final[dict[str, str]] = {
    "documents": "documents.jsonl",
    "chat": "examples.jsonl",
    "prompts": "prompts.jsonl",
    "rollouts": "rollouts.jsonl",
}
"""Kinds of artifact that are one file of rows, with its name."""
_MANIFESTS: Final = (MANIFEST, "checkpoint.json")


def as_artifact(path: Path, kind: ArtifactKind, stage: str, scratch: Path) -> Path:
    """An artifact directory for a path: itself, or a bare JSONL or Parquet file wrapped as one.

    Raises:
        UsageError: The path is a bare file, but artifacts of this kind are more than one file; or
            its name ends in something else.
    """
    if path.is_dir():
        if not any((path / name).is_file() for name in _MANIFESTS):
            raise UsageError(
                f"{path} is a folder without a manifest; name an artifact folder of a run, or one "
                f"file of {kind} rows"
            )
        return path
    if kind not in ROWS:
        raise UsageError(
            f"{path} is a file, but a {kind} artifact is a folder of several; name that folder"
        )
    scratch.mkdir(parents=True)
    target = scratch / ROWS[kind]
    if path.suffix == ".jsonl":
        _share(path, target)
    elif path.suffix == ".parquet":
        with atomic_write(target) as stream:
            for row in _parquet_rows(path):
                stream.write(json.dumps(row) + "\n")
    else:
        raise UsageError(f"{path} must end in .jsonl or .parquet")
    if kind == "rollouts":
        write_json(scratch / "summary.json", {"passed_through": False})
    publish(scratch, kind, stage)
    return scratch


def _share(path: Path, target: Path) -> None:
    try:
        os.link(path, target)
    except OSError:
        # Another device, or a file system without hard links.
        shutil.copy2(path, target)


def _parquet_rows(path: Path) -> Iterator[dict[str, Any]]:
    from pyarrow import parquet

    with parquet.ParquetFile(path) as opened:
        for batch in opened.iter_batches(batch_size=1_024):
            yield from batch.to_pylist()
