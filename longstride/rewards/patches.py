"""Unified diffs: read, checked and applied to texts, strictly."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import PurePosixPath

_HUNK = re.compile(r"@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")
_NO_NEWLINE = "\\ No newline at end of file"
_UNSUPPORTED = ("rename from ", "copy from ", "GIT binary patch", "Binary files ", "old mode ")


class PatchRefused(ValueError):
    """The text is no unified diff, or it does not fit the files."""


@dataclass
class _Change:
    """The hunks of one file; None for the side on which it does not exist."""

    old: str | None
    new: str | None
    hunks: list[tuple[int, list[str]]] = field(default_factory=list)


def apply_patch(files: Mapping[str, str], patch: str) -> dict[str, str]:
    """The files after a unified diff.

    Strict: every context line must be where the hunk says, give or take an offset at which it is
    found once. Renames, modes and binary content are refused.

    Raises:
        PatchRefused: Says which file and why.
    """
    changes = _parse(patch)
    if not changes:
        raise PatchRefused("no unified diff was found")
    result = dict(files)
    for change in changes:
        before = _before(result, change)
        after = _apply(before, change)
        if change.old is not None:
            del result[change.old]
        if change.new is not None:
            if change.new in result:
                raise PatchRefused(f"{change.new} exists already")
            result[change.new] = after
        elif after:
            raise PatchRefused(f"{change.old} is deleted, but the diff leaves lines of it")
    return result


def touched(patch: str) -> set[str]:
    """Paths that a diff names. Raises PatchRefused as `apply_patch`."""
    return {path for change in _parse(patch) for path in (change.old, change.new) if path}


def safe_path(path: str) -> str:
    """A relative path inside the repository. Raises PatchRefused for any other."""
    parts = PurePosixPath(path).parts
    outside = not parts or path.startswith("/") or ".." in parts or parts[0] == ".git"
    if outside or "\0" in path or "\\" in path or len(path) > 1000:
        raise PatchRefused(f"path {path!r} leaves the repository")
    return str(PurePosixPath(*parts))


def _parse(patch: str) -> list[_Change]:
    changes: list[_Change] = []
    lines = patch.split("\n")
    place = 0
    while place < len(lines):
        line = lines[place]
        if line.startswith(_UNSUPPORTED):
            raise PatchRefused(f"not supported: {line.split(':')[0][:60]!r}")
        following = lines[place + 1] if place + 1 < len(lines) else ""
        if line.startswith("--- ") and following.startswith("+++ "):
            changes.append(_Change(_name(line[4:], "a/"), _name(lines[place + 1][4:], "b/")))
            place += 2
        elif match := _HUNK.match(line):
            if not changes:
                raise PatchRefused("a hunk without the name of its file")
            body, place = _body(lines, place + 1, match)
            changes[-1].hunks.append((int(match[1]), body))
        else:
            place += 1
    for change in changes:
        if not change.hunks:
            raise PatchRefused(f"{change.new or change.old} has no hunks")
    return changes


def _name(text: str, prefix: str) -> str | None:
    path = text.split("\t")[0].strip()
    if path == "/dev/null":
        return None
    return safe_path(path.removeprefix(prefix))


def _body(lines: list[str], place: int, match: re.Match[str]) -> tuple[list[str], int]:
    """The lines of a hunk by the counts in its head, and where they end."""
    old = int(match[2]) if match[2] is not None else 1
    new = int(match[4]) if match[4] is not None else 1
    body: list[str] = []
    while old > 0 or new > 0:
        if place >= len(lines):
            raise PatchRefused("a hunk ends before its head says")
        line = lines[place] or " "  # editors strip the blank of an empty context line
        place += 1
        if line == _NO_NEWLINE:
            continue
        if line[0] not in " +-":
            raise PatchRefused(f"a hunk holds the line {line[:60]!r}")
        old -= line[0] in " -"
        new -= line[0] in " +"
        body.append(line)
    if old or new:
        raise PatchRefused("a hunk has not as many lines as its head says")
    return body, place


def _before(files: Mapping[str, str], change: _Change) -> list[str]:
    if change.old is None:
        return []
    if change.old not in files:
        raise PatchRefused(f"{change.old} is not in the repository")
    return files[change.old].split("\n")


def _apply(before: list[str], change: _Change) -> str:
    after: list[str] = []
    done = 0
    for start, body in change.hunks:
        old = [line[1:] for line in body if line[0] in " -"]
        place = _find(before, old, start - 1, done, change)
        after += before[done:place]
        after += [line[1:] for line in body if line[0] in " +"]
        done = place + len(old)
    after += before[done:]
    text = "\n".join(after)
    if change.old is None and text:
        return text + "\n"
    return text


def _find(before: list[str], old: list[str], stated: int, done: int, change: _Change) -> int:
    if not old:
        return max(done, min(stated + 1, len(before))) if change.old is not None else 0
    if stated >= done and before[stated : stated + len(old)] == old:
        return stated
    places = [
        place
        for place in range(done, len(before) - len(old) + 1)
        if before[place : place + len(old)] == old
    ]
    if len(places) != 1:
        found = "nowhere" if not places else f"at {len(places)} places"
        raise PatchRefused(f"{change.old}: a hunk's context is found {found}")
    return places[0]
