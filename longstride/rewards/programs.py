"""Verifier `code`: programs against inputs and outputs, or against unit tests, in the sandbox."""

from __future__ import annotations

import math
import re
import time
from typing import Any

from longstride.errors import DataError
from longstride.rewards.protocol import Judgment, NotJudged, Score, Submission
from longstride.rewards.sandbox.jails import Jail, JailEnded, Jails
from schemas.rows import RLPrompt
from schemas.verification import JudgingConfig

LONGEST_PROGRAM = 200_000
"""Characters; a longer answer is wrong."""
_FENCE = re.compile(r"```(?:python|py|python3)?[ \t]*\n(.*?)```", re.DOTALL)
_GRACE_SECONDS = 0.5
_WRONG = Score(0.0, correct=False)


def judge_program(submission: Submission, jails: Jails, config: JudgingConfig) -> Judgment:
    """Judge one program. Its own failures, time-outs and excesses are wrong answers.

    Raises:
        DataError: The prompt's entry is not what the verifier needs.
        SandboxUnavailable: No jail can be built.
    """
    entry = submission.prompt.entry
    check_entry(submission.prompt)
    text = program_of(submission.answer)
    if not text.strip() or len(text) > LONGEST_PROGRAM:
        return _WRONG
    program = f"{entry.get('prelude', '')}{text}"
    due = time.monotonic() + config.program_seconds
    if "cases" in entry:
        return _run_on_inputs(program, entry, jails, config, due)
    return _run_tests(program, entry, jails, config, due)


def check_entry(prompt: RLPrompt) -> None:
    """Refuse an entry that would judge nothing.

    Raises:
        DataError: Says what is missing.
    """
    entry = prompt.entry
    known = {"cases", "tests", "prelude", "entry_point", "tolerance"}
    problem = ""
    if ("cases" in entry) == ("tests" in entry):
        problem = "must hold either 'cases' or 'tests'"
    elif not entry.get("cases") and not entry.get("tests"):
        problem = "holds no case and no test, so that any program would pass"
    elif "cases" in entry and not all(
        isinstance(case, dict)
        and isinstance(case.get("input"), str)
        and isinstance(case.get("output"), str)
        for case in entry["cases"]
    ):
        problem = "must give each case an 'input' and an 'output', both texts"
    elif isinstance(entry.get("tests"), str) and "entry_point" not in entry:
        problem = "must name the 'entry_point' that its check(candidate) is given"
    if problem:
        fields = sorted(known & set(entry))
        raise DataError(f"prompt {prompt.id}: its entry {problem}; it has {fields}")


def program_of(answer: str) -> str:
    """The last fenced block of an answer, else the whole of it."""
    blocks = _FENCE.findall(answer)
    return str(blocks[-1]) if blocks else answer


def same_output(said: str, expected: str, tolerance: float = 0.0) -> bool:
    """Whether two outputs are equal, blanks at line ends and blank lines at the end apart.

    With a tolerance, words that are both finite numbers may differ by it, absolutely or relatively.
    """
    lines, wanted = (_lines(text) for text in (said, expected))
    if not tolerance or lines == wanted:
        return lines == wanted
    if len(lines) != len(wanted):
        return False
    return all(
        len(a.split()) == len(b.split())
        and all(_close(x, y, tolerance) for x, y in zip(a.split(), b.split(), strict=True))
        for a, b in zip(lines, wanted, strict=True)
    )


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().split("\n")]


def _close(said: str, wanted: str, tolerance: float) -> bool:
    if said == wanted:
        return True
    try:
        a, b = float(said), float(wanted)
    except ValueError:
        return False
    return math.isfinite(a) and math.isclose(a, b, rel_tol=tolerance, abs_tol=tolerance)


def _run_on_inputs(
    program: str, entry: dict[str, Any], jails: Jails, config: JudgingConfig, due: float
) -> Judgment:
    """Run it on each input; what it prints is compared here, where it cannot reach."""
    cases = entry["cases"]
    jail = jails.take()
    passed = 0
    try:
        inputs = [case["input"] for case in cases]
        jail.send({"mode": "run", "program": program, "inputs": inputs}, due)
        for case in cases:
            said = jail.receive(_next_due(config, due))
            if said["ended"] == "exited" and said["code"] == 0:
                tolerance = float(entry.get("tolerance", 0.0))
                passed += same_output(str(said["output"]), case["output"], tolerance)
            if said["ended"] == "timeout":
                break
    except (JailEnded, ValueError, LookupError, TypeError):
        # Only the program's doing can silence or garble a jail that was ready for it.
        pass
    finally:
        jail.end()
    return _share(passed, len(cases))


def _run_tests(
    program: str, entry: dict[str, Any], jails: Jails, config: JudgingConfig, due: float
) -> Judgment:
    """Run the tests in one jail and the program in another; carry each call between them."""
    tests = entry["tests"]
    name = entry.get("entry_point")
    request = {
        "mode": "test",
        "prelude": entry.get("prelude", ""),
        "names": [name] if name else [],
        "check": "check" if isinstance(tests, str) else "",
        "tests": [tests] if isinstance(tests, str) else list(tests),
    }
    candidate = jails.take()
    try:
        try:
            candidate.send({"mode": "serve", "program": program}, due)
            if "ready" not in candidate.receive(_next_due(config, due)):
                return _share(0, len(request["tests"]))
        except (JailEnded, ValueError):
            return _share(0, len(request["tests"]))
        harness = jails.take()
        try:
            return _carry(harness, candidate, request, config, due)
        finally:
            harness.end()
    finally:
        candidate.end()


def _carry(
    harness: Jail, candidate: Jail, request: dict[str, Any], config: JudgingConfig, due: float
) -> Judgment:
    passed, total = 0, len(request["tests"])
    try:
        harness.send(request, due)
        for _ in range(total):
            said = harness.receive(_next_due(config, due))
            while "call" in said:
                said["name"] = said.pop("call")
                try:
                    candidate.send(said, _next_due(config, due))
                    answer = _checked(candidate.receive(_next_due(config, due)))
                except (JailEnded, ValueError):
                    return _share(passed, total)
                harness.send(answer, due)
                said = harness.receive(_next_due(config, due))
            passed += said["passed"] is True
    except JailEnded as error:
        if error.how == "gone":
            return NotJudged("died", "the tests' own process ended before they did")
        return NotJudged("timeout", "the tests themselves took too long")
    return _share(passed, total)


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """What a program's jail may say to a call. Raises ValueError for anything else."""
    if set(answer) == {"value", "args"} and isinstance(answer["args"], list):
        return answer
    if set(answer) == {"raised", "text"} and all(isinstance(v, str) for v in answer.values()):
        return answer
    raise ValueError("not an answer to a call")


def _next_due(config: JudgingConfig, due: float) -> float:
    return min(due, time.monotonic() + config.sandbox.wall_seconds + _GRACE_SECONDS)


def _share(passed: int, total: int) -> Score:
    return Score(passed / total, passed == total, {"passed": passed, "tests": total})
