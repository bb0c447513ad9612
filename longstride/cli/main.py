"""The `longstride` command. Exit codes: 0 done, 1 blocked or failed, 2 wrong usage.

`longstride quality` tells more: 3 blocked, 4 could not check.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path

from longstride.cli import commands, conformance, judging, planning, storage
from longstride.errors import LongstrideError, UsageError
from longstride.version import __version__

FAILED = 1
USAGE = 2
INTERRUPTED = 130


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    parsed = _parser().parse_args(arguments)
    try:
        code: int = parsed.run(parsed)
        # What is still buffered would otherwise meet a closed pipe outside of this `try`.
        sys.stdout.flush()
    except KeyboardInterrupt:
        print("longstride: interrupted", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader (`| head`) has seen enough; keep the interpreter from flushing into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except UsageError as error:
        print(f"longstride: {error}", file=sys.stderr)
        return USAGE
    except LongstrideError as error:
        print(f"longstride: {type(error).__name__}: {error}", file=sys.stderr)
        return FAILED
    except (OSError, sqlite3.Error) as error:
        print(f"longstride: {error}; check the path and its permissions", file=sys.stderr)
        return FAILED
    return code


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="longstride",
        description="The MiniMax-M1 way of post-training, as one pipeline on Kubeflow Pipelines.",
    )
    parser.add_argument("--version", action="version", version=f"longstride {__version__}")
    actions = parser.add_subparsers(required=True, metavar="command")

    check = _recipe_command(actions, "check", "resolve and validate a recipe, print the plan")
    check.add_argument("--resolved", type=Path, help="write the resolved recipe to this JSON file")
    check.set_defaults(run=commands.check)

    planning.add_command(
        _recipe_command(actions, "plan", "FLOPs, time and money of a recipe on a number of GPUs")
    )

    compile_ = _recipe_command(actions, "compile", "compile a recipe to KFP v2 IR")
    compile_.add_argument("-o", "--output", type=Path, help="IR file (default: <name>.yaml)")
    compile_.set_defaults(run=commands.compile_)

    run = _recipe_command(actions, "run", "run a recipe on this machine, with a report at the end")
    run.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    run.add_argument(
        "--run-id", type=_name, help="name of the run's folder (default: recipe and time)"
    )
    run.add_argument("--no-cache", action="store_true", help="run every task even if known")
    _machine_options(run)
    storage.mirror_options(run)
    run.set_defaults(run=commands.run)

    resume = actions.add_parser("resume", help="finish a run that was killed, stopped or blocked")
    _run_argument(resume)
    _machine_options(resume)
    storage.mirror_options(resume)
    resume.set_defaults(run=commands.resume)

    override = actions.add_parser("override", help="let a blocked gate pass, by name and reason")
    _run_argument(override)
    override.add_argument("gate", help="edge/stage, for example E1/corpus")
    override.add_argument("--by", required=True, help="who decides")
    override.add_argument("--reason", required=True, help="why; recorded in the verdict")
    override.set_defaults(run=commands.override)

    stop = actions.add_parser("stop", help="stop a run; the exit handler still reports")
    _run_argument(stop)
    stop.set_defaults(run=commands.stop)

    report = actions.add_parser("report", help="write the report of a run, in whatever state")
    _run_argument(report)
    report.add_argument("-o", "--output", type=Path, help="file (default: report.html in the run)")
    report.set_defaults(run=commands.report)

    conform = actions.add_parser("conform", help="check RL losses against numeric cases")
    conform.add_argument(
        "--target",
        metavar="MODULE:FUNCTION",
        help="check a loss of your own, under the contract of docs/conformance.md",
    )
    conform.add_argument("--float32", action="store_true", help="in float32 instead of float64")
    conform.add_argument("--json", action="store_true", help="print JSON instead of a table")
    conform.set_defaults(run=conformance.conform)

    _calibration_command(actions)
    storage.add_commands(actions)
    quality = actions.add_parser(
        "quality", help="run the quality gate of an edge on files of your own"
    )
    quality.add_argument("path", type=Path, help="artifact folder, or a .jsonl or .parquet file")
    quality.add_argument("--edge", required=True, help="E1 to E8, or corpus, packed, sft, ...")
    quality.add_argument("--recipe", default="tiny", help="recipe whose thresholds apply")
    quality.add_argument("--set", dest="overrides", action="append", default=[],
                         metavar="FIELD=VALUE", help="override one field of it")  # fmt: skip
    quality.add_argument("--reference", type=Path, help="what the edge measures against")
    quality.add_argument("--stage", help="stage whose settings apply, for example extend-2")
    quality.add_argument("--out", type=Path, help="folder of verdict and page")
    quality.add_argument("--json", action="store_true", help="print JSON")
    quality.set_defaults(run=commands.quality)

    bless = actions.add_parser("bless", help="make a run's gates the baseline of later runs")
    _run_argument(bless)
    bless.add_argument("--store", type=Path, help="folder of baselines (default: beside the runs)")
    bless.set_defaults(run=commands.bless)

    runs = actions.add_parser("runs", help="list runs with their states")
    runs.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    runs.set_defaults(run=commands.list_runs)
    return parser


def _calibration_command(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    calibration = actions.add_parser(
        "calibrate-judge", help="compare a recipe's model judge with people's labels"
    )
    calibration.add_argument("labelled", type=Path, help="JSONL of labelled answers")
    calibration.add_argument("--recipe", required=True, help="a recipe with rewards.model")
    _override_option(calibration)
    calibration.add_argument(
        "-o", "--output", type=Path, default=Path("judge-calibration"),
        help="folder of report and verdicts; verdicts in it are not asked for again",
    )  # fmt: skip
    calibration.set_defaults(run=judging.calibrate_judge)


def _positive(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _name(text: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", text):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a name: letters, digits, dots, dashes and underscores"
        )
    return text


def _recipe_command(
    actions: argparse._SubParsersAction[argparse.ArgumentParser], name: str, help_: str
) -> argparse.ArgumentParser:
    command = actions.add_parser(name, help=help_)
    command.add_argument("recipe", help="a YAML file, or the name of a shipped recipe")
    _override_option(command)
    return command


def _override_option(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--set",
        dest="overrides",
        action="append",
        default=[],
        metavar="FIELD=VALUE",
        help="override one field, for example rl.rounds=2 (repeatable)",
    )


def _run_argument(command: argparse.ArgumentParser) -> None:
    command.add_argument("run_dir", help="the run's folder, or its name below --runs")
    command.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")


def _machine_options(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--cpus", type=_positive, help="CPU cores to share among tasks (default: all)"
    )
    command.add_argument("--gpus", type=int, default=0, help="accelerators to share (default: 0)")
    command.add_argument(
        "--secrets", type=Path, help="JSON file with secrets by name, for tasks that refer to them"
    )


if __name__ == "__main__":
    sys.exit(main())
