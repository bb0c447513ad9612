"""Verifier `software_engineering`: a patch to a repository snapshot, judged by its tests.

Tests run in one process with the code that they test, which could end that process, forge its
report or make its values equal to everything. So each test that passes is run once more with what
it expects changed: a test that still passes then was not decided by what it asserts.
"""

from __future__ import annotations

import base64
import binascii
import io
import re
import tarfile
import time
from functools import lru_cache
from typing import Any

from longstride.errors import DataError
from longstride.rewards.mutants import cannot_pass
from longstride.rewards.patches import PatchRefused, apply_patch, safe_path
from longstride.rewards.protocol import Judgment, Score, Submission
from longstride.rewards.sandbox.jails import JailEnded, Jails
from schemas.rows import RLPrompt
from schemas.verification import JudgingConfig

DEFAULT_COMMAND = ("python", "-m", "unittest", "-q", "{test}")
LONGEST_PATCH = 200_000
"""Characters; a longer answer is wrong."""
_FENCE = re.compile(r"```(?:diff|patch)?[ \t]*\n(.*?)```", re.DOTALL)
_MOST_FILES, _MOST_BYTES = 5_000, 32 << 20
_GRACE_SECONDS = 1.0
_WRONG = Score(0.0, correct=False)


def judge_patch(submission: Submission, jails: Jails, config: JudgingConfig) -> Judgment:
    """Judge one patch: right when all tests pass, those that failed before and all others.

    The value is the share of the former that pass, 0 when any of the latter fails.

    Raises:
        DataError: The prompt's entry is not what the verifier needs.
        SandboxUnavailable: No jail can be built.
    """
    entry = submission.prompt.entry
    check_entry(submission.prompt)
    files, tests = _snapshot(submission.prompt), dict(entry["tests"])
    blocks = _FENCE.findall(submission.answer)
    patch = blocks[-1] if blocks else submission.answer
    if len(patch) > LONGEST_PATCH:
        return _WRONG
    try:
        patched = apply_patch({**files, **tests}, patch)
    except PatchRefused:
        return _WRONG
    patched |= tests  # whatever the patch made of them
    fixed, kept = list(entry["fail_to_pass"]), list(entry.get("pass_to_pass", ()))
    passed = _passing(patched, tests, fixed + kept, entry, jails, config)
    share = sum(test in passed for test in fixed) / len(fixed)
    broken = [test for test in kept if test not in passed]
    parts = {"fail_to_pass": share, "broken": float(len(broken))}
    return Score(0.0 if broken else share, share == 1.0 and not broken, parts)


def check_entry(prompt: RLPrompt) -> None:
    """Refuse an entry that would judge nothing, or whose tests are not in its test files.

    Raises:
        DataError: Says what is missing.
    """
    entry = prompt.entry
    problem = ""
    if ("files" in entry) == ("archive" in entry):
        problem = "must hold either 'files' or 'archive'"
    elif not isinstance(entry.get("tests"), dict) or not entry["tests"]:
        problem = "must hold 'tests', the test files by path"
    elif not entry.get("fail_to_pass"):
        problem = "names no test in 'fail_to_pass', so that any patch would do"
    elif not any("{test}" in word for word in entry.get("command", DEFAULT_COMMAND)):
        problem = "has a 'command' without {test}"
    else:
        named = [*entry["fail_to_pass"], *entry.get("pass_to_pass", ())]
        lost = [test for test in named if _locate(test, entry["tests"]) is None]
        if lost:
            problem = f"names tests that are in none of its test files: {lost[:3]}"
    if problem:
        raise DataError(f"prompt {prompt.id}: its entry {problem}")


def _passing(
    files: dict[str, str],
    tests: dict[str, str],
    names: list[str],
    entry: dict[str, Any],
    jails: Jails,
    config: JudgingConfig,
) -> set[str]:
    """Tests that pass, and fail when what they expect is changed."""
    command = list(entry.get("command", DEFAULT_COMMAND))
    runs = []
    for test in names:
        argv = [word.replace("{test}", test) for word in command]
        found = _locate(test, tests)
        assert found is not None
        path, parts = found
        runs += [
            {"argv": argv, "files": {}},
            {"argv": argv, "files": {path: cannot_pass(tests[path], parts)}},
        ]
    due = time.monotonic() + config.program_seconds
    ended: list[bool] = []
    jail = jails.take()
    try:
        jail.send({"mode": "commands", "files": files, "runs": runs}, due)
        for _ in runs:
            wall = config.sandbox.wall_seconds + _GRACE_SECONDS
            said = jail.receive(min(due, time.monotonic() + wall))
            ended.append(said["ended"] == "exited" and said["code"] == 0)
    except (JailEnded, ValueError, LookupError, TypeError):
        # Only the patch's doing can silence a jail that was ready for it; the rest has failed.
        ended += [False] * (len(runs) - len(ended))
    finally:
        jail.end()
    return {
        test for test, real, changed in zip(names, ended[::2], ended[1::2], strict=True)
        if real and not changed
    }  # fmt: skip


def _locate(test: str, tests: dict[str, str]) -> tuple[str, list[str]] | None:
    """File and dotted parts of a test's name: `a.b.Case.test_x` or `a/b.py::Case::test_x`."""
    path, *parts = test.split("::")
    if parts:
        return (path, parts) if path in tests else None
    words = test.split(".")
    for length in range(len(words) - 1, 0, -1):
        path = "/".join(words[:length]) + ".py"
        if path in tests:
            return path, words[length:]
    return None


def _snapshot(prompt: RLPrompt) -> dict[str, str]:
    if "files" in prompt.entry:
        return dict(prompt.entry["files"])
    try:
        return _unpack(prompt.entry["archive"])
    except (binascii.Error, tarfile.TarError, EOFError, OSError, ValueError) as error:
        raise DataError(f"prompt {prompt.id}: its archive cannot be read: {error}") from error


@lru_cache(maxsize=16)
def _unpack(archive: str) -> dict[str, str]:
    """Text files of a base64 tar archive, in memory; nothing is written, links are left out."""
    files: dict[str, str] = {}
    size = 0
    with tarfile.open(fileobj=io.BytesIO(base64.b64decode(archive, validate=True))) as tar:
        for member in tar:
            if not member.isfile():
                continue
            size += member.size
            if len(files) >= _MOST_FILES or size > _MOST_BYTES:
                raise ValueError(f"more than {_MOST_FILES} files or {_MOST_BYTES} bytes")
            reader = tar.extractfile(member)
            assert reader is not None
            files[safe_path(member.name)] = reader.read().decode("utf-8")
    return files
