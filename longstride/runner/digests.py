"""Content digests of files and folders, streamed and remembered by size and modification time."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path

from longstride.runner.values import canonical

_CHUNK = 1 << 20

FileRecord = tuple[str, int, int, str]  # relative path, size, mtime in ns, sha256


class Digester:
    """Digests with a memory: a file whose size and mtime did not change is not read again."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, int, int], str] = {}

    def remember(self, root: Path, records: list[FileRecord]) -> None:
        """Take over digests that an earlier run measured."""
        for relative, size, mtime_ns, digest in records:
            self._known[(_member(root, relative), size, mtime_ns)] = digest

    def file(self, path: str, status: os.stat_result) -> str:
        """Sha256 of one file."""
        key = (path, status.st_size, status.st_mtime_ns)
        if key not in self._known:
            digest = hashlib.sha256()
            with open(path, "rb") as handle:
                while chunk := handle.read(_CHUNK):
                    digest.update(chunk)
            self._known[key] = digest.hexdigest()
        return self._known[key]

    def unread_bytes(self, root: Path) -> int:
        """How many bytes below `root` a digest would have to read."""
        if root.is_file():
            files = [root]
        else:
            files = [Path(folder, name) for folder, _, names in os.walk(root) for name in names]
        total = 0
        for path in files:
            status = path.stat()
            if (str(path), status.st_size, status.st_mtime_ns) not in self._known:
                total += status.st_size
        return total

    def records(self, root: Path) -> list[FileRecord] | None:
        """One record per file below `root`, sorted by path; None when nothing is at `root`."""
        try:
            top = os.stat(root)
        except FileNotFoundError:
            return None
        if not stat.S_ISDIR(top.st_mode):
            return [("", top.st_size, top.st_mtime_ns, self.file(str(root), top))]
        found: list[FileRecord] = []
        for folder, _, names in os.walk(root):
            for name in names:
                path = os.path.join(folder, name)
                status = os.stat(path)
                relative = os.path.relpath(path, root)
                digest = self.file(path, status)
                found.append((relative, status.st_size, status.st_mtime_ns, digest))
        return sorted(found)

    def artifact(self, root: Path) -> str:
        """Digest of a file or a folder: names and contents, not times. "" when nothing is there."""
        records = self.records(root)
        return "" if records is None else combine(records)


def combine(records: list[FileRecord]) -> str:
    """The digest of a folder from the records of its files."""
    content = [[relative, digest] for relative, _, _, digest in records]
    return hashlib.sha256(canonical(content).encode()).hexdigest()


def _member(root: Path, relative: str) -> str:
    return os.path.join(root, relative) if relative else str(root)
