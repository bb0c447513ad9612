"""Files below a location on a disk or in an object store, in the order of their paths."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from longstride.errors import DataError
from longstride.store.locations import s3_files
from schemas.data import FileSource

TEXT_SUFFIXES = (
    ".txt", ".md", ".rst", ".tex", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".hpp", ".java", ".js",
    ".ts", ".go", ".rs", ".sh", ".sql",
)  # fmt: skip
TABLE_SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet", ".arrow")
_SPLITS_FILE = "dataset_dict.json"
_STATE_FILE = "state.json"


@dataclass(frozen=True)
class Files:
    """The usable files of a source."""

    storage: Any
    """The fsspec file system."""
    base: str
    """Folder that file names are relative to."""
    paths: list[str]
    """Their paths, sorted."""
    errors: tuple[type[Exception], ...]
    """What the storage raises when it fails."""

    def name(self, path: str) -> str:
        """A path below the base."""
        return posixpath.relpath(path, self.base)


def find_files(source: FileSource) -> Files:
    """Files of a known kind below the source's location.

    In a folder that `datasets.save_to_disk` wrote only the data files of its state.json count, and
    of a folder with several splits only the source's split.

    Raises:
        DataError: The location does not exist, cannot be reached, or holds no file of a known kind.
    """
    storage, root, errors = _open_storage(source)
    try:
        single = storage.isfile(root)
        found = [root] if single else sorted(storage.find(root))
        base = posixpath.dirname(root) if single else root.rstrip("/")
        chosen = found if single else _without_strangers(source, storage, found)
    except errors as error:
        raise DataError(f"{source.uri} cannot be read: {error}") from error
    paths = [path for path in chosen if _is_usable(posixpath.relpath(path, base))]
    if not paths:
        what = f"{len(found)} files, none of a known kind" if found else "nothing"
        raise DataError(
            f"source {source.name!r}: {source.uri} holds {what}; expected text "
            f"({', '.join(TEXT_SUFFIXES)}) or tables ({', '.join(TABLE_SUFFIXES)}) there"
        )
    return Files(storage, base, paths, errors)


def list_files(source: FileSource) -> list[tuple[str, object, object]]:
    """Name, size and last change (time or ETag) of every file that would be read.

    Raises:
        DataError: As `find_files`.
    """
    files = find_files(source)
    found = []
    for path in files.paths:
        try:
            info = files.storage.info(path)
        except files.errors as error:
            raise DataError(f"{source.uri}: {path} cannot be read: {error}") from error
        change = info.get("ETag") or info.get("mtime") or info.get("LastModified")
        found.append((files.name(path), info.get("size"), change))
    return found


def _open_storage(source: FileSource) -> tuple[Any, str, tuple[type[Exception], ...]]:
    import fsspec.core

    if source.uri.startswith("s3://"):
        from botocore.exceptions import BotoCoreError, ClientError

        storage = s3_files()
        root = storage._strip_protocol(source.uri)
        return storage, root, (OSError, BotoCoreError, ClientError)
    try:
        storage, root = fsspec.core.url_to_fs(source.uri)
    except (ValueError, ImportError) as error:
        raise DataError(
            f"source {source.name!r}: {source.uri} is no location that can be read ({error}); use "
            "a local path, file:// or s3://"
        ) from error
    return storage, root, (OSError,)


def _is_usable(name: str) -> bool:
    hidden = any(part.startswith(".") for part in name.split("/"))
    return not hidden and name.lower().endswith(TEXT_SUFFIXES + TABLE_SUFFIXES)


def _without_strangers(source: FileSource, storage: Any, paths: list[str]) -> list[str]:
    """Leave out other splits, and the caches that `datasets` leaves beside its data files."""
    chosen = paths
    for path in paths:
        folder, name = posixpath.split(path)
        if name == _SPLITS_FILE:
            splits = _json_list(storage, path, "splits", str)
            if source.split not in splits:
                raise DataError(
                    f"source {source.name!r}: {folder} has the splits {splits}, not "
                    f"{source.split!r}; set split to one of them"
                )
            keep = f"{folder}/{source.split}/"
            chosen = [p for p in chosen if p.startswith(keep) or not p.startswith(f"{folder}/")]
        elif name == _STATE_FILE and f"{folder}/dataset_info.json" in paths:
            entries = _json_list(storage, path, "_data_files", dict)
            listed = {f"{folder}/{entry.get('filename')}" for entry in entries}
            if lacking := sorted(listed.difference(paths)):
                raise DataError(
                    f"source {source.name!r}: {path} lists {lacking[0]}, which is not there; copy "
                    "the whole folder"
                )
            chosen = [p for p in chosen if posixpath.dirname(p) != folder or p in listed]
    return chosen


def _json_list(storage: Any, path: str, key: str, kind: type) -> list[Any]:
    try:
        value = json.loads(storage.cat_file(path))
    except ValueError as error:
        raise DataError(f"{path} is not valid JSON ({error}); save the data set again") from error
    found = value.get(key) if isinstance(value, dict) else None
    if not isinstance(found, list) or not _all_are(found, kind):
        raise DataError(
            f"{path} has no list {key!r} as datasets.save_to_disk writes it; save it again"
        )
    return found


def _all_are(values: Iterable[object], kind: type) -> bool:
    return all(isinstance(value, kind) for value in values)
