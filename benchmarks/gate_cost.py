"""What a gate costs beside plain polars: rows a second, CPU seconds and peak memory.

    python benchmarks/gate_cost.py [--rows 10000 100000] [--repeats 3] [--json FILE]

Each case runs in a process of its own, so that its peak memory is its own. `measure` is the gate's
streaming pass over the artifact, `judge` is polars' profile and Great Expectations on it (its
import is told apart), `plain polars` is the same counts without Great Expectations.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from longstride.cli.recipes import recipe_folder
from longstride.quality.frame import MEASURED, RowWriter
from longstride.quality.gate import INPUTS, _open
from longstride.quality.subject import Subject
from longstride.quality.suites import load_suite, resolve
from longstride.recipe.loading import load_recipe
from longstride.store.artifacts import publish
from longstride.store.files import write_json
from schemas.rows import Rollout

COLUMNS = ("rows", "measure", "rows/s", "judge", "import", "plain polars", "peak MiB")


def write_rollouts(out: Path, rows: int, tokens: int = 64) -> None:
    """Rollouts of groups of eight, half of them right."""
    out.mkdir(parents=True)
    values = [-0.1 - (7 * i % 13) / 20 for i in range(tokens)]
    with (out / "rollouts.jsonl").open("w", encoding="utf-8") as stream:
        for number in range(rows):
            right = number % 2 == 0
            rollout = Rollout(
                prompt_id=f"p{number // 8}", family="sums", group=number // 8 % 64,
                sample=number % 8, batch=number // 512, prompt_tokens=[3, 20, 21, 5, 4],
                tokens=[8 + (number + 31 * i) % 200 for i in range(tokens)], logprobs=values,
                trainer_logprobs=values, importance_weights=[1.0] * tokens,
                text=f"<think>{number} {number * 7919 % 1000}</think>{number}",
                finish_reason="stop", reward=float(right), rewards={"correct": float(right)},
                correct=right, advantage=1.0 if right else -1.0, window=96,
            )  # fmt: skip
            stream.write(rollout.model_dump_json() + "\n")
    write_json(out / "summary.json", {"passed_through": False, "is_weight_cap": 5.0})
    publish(out, "rollouts", "rl-1")


def once(path: Path) -> dict[str, float]:
    """Measure and judge in this process; CPU seconds of each part."""
    from longstride.quality import measure_rollouts

    recipe = load_recipe("tiny", [], [recipe_folder()])
    suite = resolve(load_suite("E5"), recipe)
    subject = Subject("rl-1", recipe, _open(path, INPUTS["E5"].subject), None)
    with tempfile.TemporaryDirectory() as scratch:
        began = time.process_time()
        with RowWriter(Path(scratch) / MEASURED, measure_rollouts.COLUMNS) as writer:
            measured = measure_rollouts.measure(subject, writer)
        measuring = time.process_time() - began

        from longstride.quality.profile import count_rules, make_profile

        began = time.process_time()
        count_rules("E5", [spec for spec in suite.checks if spec.level == "rows"], measured.rows)
        polars = time.process_time() - began

        began = time.process_time()
        from longstride.quality import expectations  # noqa: F401
        from longstride.quality.run_suite import run_suite

        importing = time.process_time() - began
        began = time.process_time()
        profile = make_profile("E5", "rl-1", recipe, "sha256:0", measured)
        run_suite(suite, measured, 20, profile)
        judging = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "rows": measured.rows.count, "measure": measuring, "judge": judging, "import": importing,
        "plain polars": polars, "peak MiB": peak, "rows/s": measured.rows.count / measuring,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--once", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.once:
        print(json.dumps(once(arguments.once)))
        return
    table: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as folder:
        for rows in arguments.rows:
            path = Path(folder) / str(rows)
            write_rollouts(path, rows)
            command = [sys.executable, __file__, "--once", str(path)]
            found = [
                json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
                for _ in range(arguments.repeats)
            ]
            table.append({name: statistics.median(run[name] for run in found) for name in COLUMNS})
    print("".join(f"{name:>14}" for name in COLUMNS))
    for row in table:
        print("".join(f"{row[name]:14,.{0 if row[name] >= 100 else 2}f}" for name in COLUMNS))
    if arguments.json:
        write_json(arguments.json, {"unit": "CPU seconds", "cases": table})


if __name__ == "__main__":
    main()
