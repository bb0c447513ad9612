"""The command as a person starts it, and one whole run of the micro recipe that tests share.

The conftest files of `e2e`, `faults` and `cli` take the fixture `micro` from here, so that the run
happens once a session, whichever of them are selected.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from longstride.runner import TaskState, read_events, read_tasks
from longstride.store.artifacts import digest_of_artifact, open_artifact, open_manifest
from schemas.artifacts import ArtifactManifest, CheckpointManifest

MICRO = Path(__file__).parents[1] / "recipes" / "micro.yaml"
SECONDS = 3000


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "longstride.cli.main", *map(str, arguments)]


def environment() -> dict[str, str]:
    """That of a plain shell: output is buffered when it is not a terminal."""
    hidden = ("PYTHONUNBUFFERED", "COLUMNS", "FORCE_COLOR", "NO_COLOR")
    return {name: value for name, value in os.environ.items() if name not in hidden}


def longstride(*arguments: object) -> subprocess.CompletedProcess:
    """Run the command to its end."""
    return subprocess.run(
        command(*arguments), capture_output=True, text=True, env=environment(), timeout=SECONDS
    )


def start(*arguments: object) -> subprocess.Popen:
    """Start the command and leave it running."""
    return subprocess.Popen(
        command(*arguments),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=environment(),
    )


def wait_until(condition: Callable[[], Any], seconds: float = 240.0) -> Any:
    limit = time.monotonic() + seconds
    while not (value := condition()):
        assert time.monotonic() < limit, "the condition never held"
        time.sleep(0.02)
    return value


@dataclass(frozen=True)
class RunFolder:
    """What a run left on disk."""

    path: Path

    def tasks(self) -> dict[str, TaskState]:
        """Tasks that are processes, by `sub-pipeline/task`."""
        found = read_tasks(self.path) if (self.path / "state.sqlite").exists() else []
        return {
            task.path.removeprefix("root/").removeprefix("exit-handler-1/"): task
            for task in found
            if task.kind == "container"
        }

    def attempts_started(self) -> list[str]:
        """Tasks in the order in which their attempts started."""
        if not (self.path / "state.sqlite").exists():
            return []
        events = read_events(self.path)
        return [event.task_path for event in events if event.kind == "attempt_started"]

    def artifacts(self) -> Iterator[tuple[str, Path]]:
        """`task/output` and directory of every artifact that a task published."""
        for name, task in self.tasks().items():
            for output, group in task.outputs.get("artifacts", {}).items():
                for artifact in group:
                    yield f"{name}/{output}", Path(artifact["uri"].removeprefix("file://"))

    def output(self, task: str, name: str) -> Path:
        return dict(self.artifacts())[f"{task}/{name}"]

    def manifests(self) -> dict[str, ArtifactManifest]:
        """Manifests by `task/output`; every file has been compared with its digest."""
        found: dict[str, ArtifactManifest] = {}
        for name, directory in self.artifacts():
            if (directory / "checkpoint.json").exists():
                found[name] = open_manifest(
                    directory, "checkpoint", CheckpointManifest, "checkpoint.json"
                )
            elif (directory / "manifest.json").exists():
                kind = json.loads((directory / "manifest.json").read_text())["kind"]
                found[name] = open_artifact(directory, kind)
        return found

    def digests(self) -> dict[str, str]:
        return {name: digest_of_artifact(found) for name, found in self.manifests().items()}

    def metrics(self) -> dict[str, list[tuple[int, str, float]]]:
        """Metric values of every training task, without their times."""
        found = {}
        for name, directory in self.artifacts():
            path = directory / "metrics.jsonl"
            if path.exists():
                rows = [json.loads(line) for line in path.read_text().splitlines()]
                found[name] = [(row["step"], row["name"], row["value"]) for row in rows]
        return found

    def processes(self) -> list[int]:
        """Live processes that were started for this run or work inside of its folder."""
        mark = str(self.path).encode()
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                known = (entry / "environ").read_bytes() + os.readlink(entry / "cwd").encode()
            except OSError:
                continue
            if mark in known and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        return found


@dataclass(frozen=True)
class FinishedRun:
    """A run of the command with its output."""

    folder: RunFolder
    code: int
    output: str
    errors: str

    @property
    def runs(self) -> Path:
        """The folder of runs, whose cache knows every task of this one."""
        return self.folder.path.parent


_finished: list[FinishedRun] = []


@pytest.fixture(scope="session")
def micro(tmp_path_factory) -> FinishedRun:
    """The micro recipe, run once by the command in a folder of its own."""
    if not _finished:
        runs = tmp_path_factory.mktemp("runs")
        done = longstride("run", MICRO, "--runs", runs, "--run-id", "base")
        assert done.returncode == 0, done.stdout + done.stderr
        folder = RunFolder(runs / "base")
        _finished.append(FinishedRun(folder, done.returncode, done.stdout, done.stderr))
    return _finished[0]
