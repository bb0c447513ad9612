"""Commands about stores: runs pushed and pulled, and a store checked, listed and cleaned."""

from __future__ import annotations

import argparse
import getpass
import os
import re
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longstride.cli.folders import find_run
from longstride.errors import UsageError
from longstride.runner.mirror import Mirror
from longstride.runner.transfer import pull_run, push_run
from longstride.store.objects import ObjectStore

SUCCEEDED = 0
FAILED = 1
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def add_commands(actions: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `push`, `pull` and `store`."""
    push = actions.add_parser("push", help="copy a run, as far as it is, to a store")
    push.add_argument("run_dir", help="the run's folder, or its name below --runs")
    push.add_argument("uri", help="s3://bucket/prefix, or a folder")
    push.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    _single_writer(push)
    push.set_defaults(run=_push)

    pull = actions.add_parser("pull", help="bring a run from a store, to go on or to look at")
    pull.add_argument("uri", help="s3://bucket/prefix, or a folder")
    pull.add_argument("name", help="the run's name in the store")
    pull.add_argument("--runs", type=Path, default=Path("runs"), help="folder of all runs")
    pull.set_defaults(run=_pull)

    store = actions.add_parser("store", help="check, list, verify or clean a store")
    what = store.add_subparsers(required=True, metavar="action")
    check = what.add_parser("check", help="reach it, write, read, and try a conditional write")
    check.set_defaults(run=_check)
    list_ = what.add_parser("list", help="what is published there")
    list_.add_argument("--below", default="", help="only names below this one")
    list_.set_defaults(run=_list)
    verify = what.add_parser("verify", help="read every byte and compare it with its record")
    verify.add_argument("--below", default="", help="only names below this one")
    verify.add_argument(
        "--drop-damaged", action="store_true", help="delete damaged objects, to be sent again"
    )
    verify.set_defaults(run=_verify)
    clean = what.add_parser("clean", help="delete what no record refers to")
    clean.add_argument(
        "--older-than", type=_seconds, default=_seconds("7d"), help="for example 12h or 7d"
    )
    clean.set_defaults(run=_clean)
    for action in (check, list_, verify, clean):
        action.add_argument("uri", help="s3://bucket/prefix, or a folder")


def mirror_options(command: argparse.ArgumentParser) -> None:
    """Add `--mirror` to a command that runs."""
    command.add_argument(
        "--mirror",
        metavar="URI",
        help="keep a copy of the run in a store while it goes on: s3://bucket/prefix",
    )
    _single_writer(command)


@contextmanager
def mirrored(arguments: argparse.Namespace, run_dir: Path) -> Iterator[Mirror | None]:
    """The mirror that `--mirror` asks for, if it does."""
    if arguments.mirror is None:
        if arguments.single_writer:
            raise UsageError("--single-writer says something about --mirror, which is not given")
        yield None
        return
    with Mirror(run_dir, _open(arguments, arguments.mirror), _tell) as mirror:
        yield mirror


def push_finished(arguments: argparse.Namespace, run_dir: Path) -> None:
    """Push a mirrored run once more when its report is written."""
    if arguments.mirror is not None:
        pushed = push_run(run_dir, _open(arguments, arguments.mirror))
        print(f"mirrored as {pushed.name} in {arguments.mirror}")


def _push(arguments: argparse.Namespace) -> int:
    run_dir = find_run(arguments.run_dir, arguments.runs)
    pushed = push_run(run_dir, _open(arguments, arguments.uri))
    print(
        f"{pushed.name}: {pushed.attempts} finished attempts of {pushed.tasks} tasks and "
        f"{pushed.imported} artifacts of other runs are in {arguments.uri}"
    )
    return SUCCEEDED


def _pull(arguments: argparse.Namespace) -> int:
    store = ObjectStore(arguments.uri, _publisher())
    target = pull_run(store, arguments.name, arguments.runs)
    print(f"{target}\nnow: longstride resume {target}, or longstride report {target}")
    return SUCCEEDED


def _check(arguments: argparse.Namespace) -> int:
    store = ObjectStore(arguments.uri, _publisher())
    honoured = store.probe()
    print(f"{store.location.uri}: can be written and read")
    if honoured:
        print("conditional writes: honoured, any number of writers may publish here")
        return SUCCEEDED
    print("conditional writes: IGNORED; only one writer at a time, and with --single-writer")
    return FAILED


def _list(arguments: argparse.Namespace) -> int:
    store = ObjectStore(arguments.uri, _publisher())
    for name in store.names(arguments.below):
        found = store.find(name)
        if found is not None:
            size = sum(record.size for record in found.files.values())
            print(f"{size:>14,}  {len(found.files):>6}  {name}  ({found.publisher})")
    return SUCCEEDED


def _verify(arguments: argparse.Namespace) -> int:
    store = ObjectStore(arguments.uri, _publisher())
    names, broken = store.names(arguments.below), 0
    for name in names:
        problems = store.verify(name, drop_damaged=arguments.drop_damaged)
        broken += bool(problems)
        for problem in problems:
            print(f"{name}: {problem}")
    print(f"{len(names) - broken} of {len(names)} published directories are whole")
    return FAILED if broken else SUCCEEDED


def _clean(arguments: argparse.Namespace) -> int:
    store = ObjectStore(arguments.uri, _publisher())
    objects, uploads = store.collect_garbage(arguments.older_than)
    print(f"deleted {objects} objects and {uploads} unfinished uploads")
    return SUCCEEDED


def _open(arguments: argparse.Namespace, uri: str) -> ObjectStore:
    return ObjectStore(uri, _publisher(), single_writer=arguments.single_writer)


def _publisher() -> str:
    return f"{getpass.getuser()} on {socket.gethostname()}, process {os.getpid()}"


def _single_writer(command: argparse.ArgumentParser) -> None:
    command.add_argument(
        "--single-writer",
        action="store_true",
        help="nobody else writes there, so an endpoint without conditional writes will do",
    )


def _tell(text: str) -> None:
    print(f"longstride: {text}", file=sys.stderr)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d+)([smhd])", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"{text!r} is no age; write 12h or 7d")
    return float(found[1]) * _UNITS[found[2]]
