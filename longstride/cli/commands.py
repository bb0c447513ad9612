"""What each command does."""

from __future__ import annotations

import argparse
import json
import os
import sqlite3
import sys
import time
from datetime import datetime
from pathlib import Path

from longstride.cli.display import Display
from longstride.cli.folders import find_run
from longstride.cli.plan import plan_lines
from longstride.cli.recipes import open_named_recipe
from longstride.cli.storage import mirrored, push_finished
from longstride.cli.summary import summary_lines
from longstride.errors import PipelineError, UsageError
from longstride.quality.overrides import record_override
from longstride.rollout.vllm_server import interpreter
from longstride.runner import Event, ExecutorOptions, RunResult, execute, load_ir, read_run
from longstride.runner import resume as resume_run
from longstride.runner import stop as stop_run
from longstride.runner.executor import RUN_FILE
from longstride.runner.mirror import Mirror
from longstride.store.files import write_json
from longstride.version import code_digest
from schemas.generators import VllmGeneratorConfig
from schemas.recipe import Recipe

SUCCEEDED = 0
FAILED = 1


def _recipe(arguments: argparse.Namespace) -> Recipe:
    return open_named_recipe(arguments.recipe, arguments.overrides)


def check(arguments: argparse.Namespace) -> int:
    """Resolve, validate, print the plan, stop."""
    recipe = _recipe(arguments)
    for line in plan_lines(recipe):
        print(line)
    if arguments.resolved:
        write_json(arguments.resolved, recipe)
        print(f"resolved recipe: {arguments.resolved}")
    return SUCCEEDED


def compile_(arguments: argparse.Namespace) -> int:
    """Compile to IR YAML."""
    from pipelines.compiling import compile_recipe

    recipe = _recipe(arguments)
    out = compile_recipe(recipe, arguments.output or Path(f"{recipe.name}.yaml"))
    print(f"{out} ({out.stat().st_size} bytes)")
    return SUCCEEDED


def run(arguments: argparse.Namespace) -> int:
    """Compile and run on this machine."""
    from pipelines.compiling import compile_recipe

    recipe = _recipe(arguments)
    # Fail on an unknown gate threshold or the like before anything starts.
    plan_lines(recipe)
    generator = recipe.rollout.generator
    if isinstance(generator, VllmGeneratorConfig) and generator.url is None:
        interpreter(generator)
    name = arguments.run_id or f"{recipe.name}-{datetime.now():%Y%m%d-%H%M%S}"
    run_dir = (arguments.runs / name).resolve()
    if run_dir.exists():
        raise UsageError(f"{run_dir} exists already; choose another --run-id, or resume it")
    print(f"{recipe.name} {recipe.version}, recipe {recipe.digest()[7:19]}, run {name}")
    ir_path = compile_recipe(recipe, arguments.runs.resolve() / f".{name}.ir.yaml")
    try:
        ir = load_ir(ir_path)
    finally:
        ir_path.unlink()
    with mirrored(arguments, run_dir) as mirror, Display(run_dir, sys.stdout) as display:
        result = execute(
            ir,
            run_dir,
            {"code_digest": code_digest()},
            _options(arguments, display, mirror, caching=not arguments.no_cache),
            run_name=name,
        )
    return _finish(arguments, run_dir, result)


def resume(arguments: argparse.Namespace) -> int:
    """Run what had not finished."""
    run_dir = _run_dir(arguments)
    unchanged = read_run(run_dir).parameters.get("code_digest") == code_digest()
    if not unchanged:
        # What this code makes must not be cached under the digest of the code that began the run.
        print("the code has changed since this run began: it goes on without the cache")
    caching = unchanged and _began_with_cache(run_dir)
    with mirrored(arguments, run_dir) as mirror, Display(run_dir, sys.stdout) as display:
        result = resume_run(run_dir, _options(arguments, display, mirror, caching))
    return _finish(arguments, run_dir, result)


def override(arguments: argparse.Namespace) -> int:
    """Record an override; `resume` then lets the gate pass."""
    run_dir = _run_dir(arguments)
    path = record_override(run_dir, arguments.gate, arguments.by, arguments.reason)
    print(f"{path}\nnow: longstride resume {run_dir}")
    return SUCCEEDED


def stop(arguments: argparse.Namespace) -> int:
    """Stop a run from outside."""
    run_dir = _run_dir(arguments)
    stop_run(run_dir)
    while read_run(run_dir).alive:
        time.sleep(0.2)
    print(f"{run_dir.name}: {read_run(run_dir).state}")
    return SUCCEEDED


def report(arguments: argparse.Namespace) -> int:
    """Write the report of a run."""
    from longstride.report.collect import write_report

    run_dir = _run_dir(arguments)
    print(write_report(run_dir, arguments.output or run_dir / "report.html"))
    return SUCCEEDED


def quality(arguments: argparse.Namespace) -> int:
    """Run an edge's gate on files of the user's own."""
    from longstride.cli.quality import quality as run

    return run(arguments, _recipe(arguments))


def bless(arguments: argparse.Namespace) -> int:
    """Make a run's gates the baseline that later runs are compared with."""
    from longstride.cli.quality import bless_run

    return bless_run(arguments, _run_dir(arguments))


def list_runs(arguments: argparse.Namespace) -> int:
    """List runs, newest first."""
    found = sorted(arguments.runs.glob("*/state.sqlite"), key=os.path.getmtime, reverse=True)
    for path in found:
        try:
            state = read_run(path.parent)
        except (PipelineError, sqlite3.Error) as error:
            print(f"{'?':21}UNREADABLE  {path.parent.name}  {error}")
            continue
        started = datetime.fromtimestamp(state.created_at).strftime("%Y-%m-%d %H:%M:%S")
        shown = "KILLED" if state.state == "RUNNING" and not state.alive else state.state
        print(f"{started}  {shown:10}  {path.parent.name}  {state.error or ''}".rstrip())
    if not found:
        print(f"no runs in {arguments.runs}")
    return SUCCEEDED


def _options(
    arguments: argparse.Namespace, display: Display, mirror: Mirror | None, caching: bool
) -> ExecutorOptions:
    def listener(event: Event) -> None:
        display.on_event(event)
        if mirror is not None:
            mirror.on_event(event)

    secrets: dict[str, dict[str, str]] = {}
    if arguments.secrets:
        try:
            secrets = json.loads(arguments.secrets.read_text(encoding="utf-8"))
        except (OSError, json.JSONDecodeError) as error:
            raise UsageError(f"--secrets {arguments.secrets} cannot be read: {error}") from error
    return ExecutorOptions(
        cpu_slots=arguments.cpus or os.cpu_count() or 1,
        gpu_slots=arguments.gpus,
        caching=caching,
        secrets=secrets,
        listener=listener,
    )


def _began_with_cache(run_dir: Path) -> bool:
    """Whether the run was begun without `--no-cache`, which holds until it is finished."""
    record = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))
    return bool(record["options"]["caching"])


def _run_dir(arguments: argparse.Namespace) -> Path:
    return find_run(arguments.run_dir, arguments.runs)


def _finish(arguments: argparse.Namespace, run_dir: Path, result: RunResult) -> int:
    from longstride.report.collect import write_report

    try:
        written: str = str(write_report(run_dir, run_dir / "report.html"))
    except PipelineError as problem:
        written = f"not written: {problem}"
    for line in summary_lines(run_dir, result.state, result.error, written):
        print(line)
    push_finished(arguments, run_dir)
    return SUCCEEDED if result.state == "SUCCEEDED" else FAILED
