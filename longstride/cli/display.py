"""What a person sees while a run is going: a line per step, and live bars on a terminal."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TextIO

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

if TYPE_CHECKING:
    from longstride.runner import Event, TaskState

POLL_SECONDS = 0.5
MARKS = {"SUCCEEDED": "✓", "FAILED": "✗", "CANCELED": "■"}


class _Screen(Console):
    """A console whose reader may leave (`| head`): a run of hours does not end with that."""

    def on_broken_pipe(self) -> None:
        """Write into nothing from here on; rich itself would exit the program."""
        self.quiet = True
        os.dup2(os.open(os.devnull, os.O_WRONLY), self.file.fileno())


class Display:
    """Turns the event log into lines; on a terminal, running tasks have bars with time left."""

    def __init__(self, run_dir: Path, stream: TextIO) -> None:
        self._run_dir = run_dir
        self._console = _Screen(file=stream, highlight=False)
        self._tasks: dict[str, TaskState] = {}
        self._logs: dict[str, Path] = {}
        self._started: dict[str, float] = {}
        self._begun = time.time()
        self._done = 0
        self._cached: set[str] = set()
        self._bars: Progress | None = None
        self._bar_ids: dict[str, Any] = {}
        self._closing = threading.Event()
        self._poller = threading.Thread(target=self._poll, daemon=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._bars = Progress(
                TextColumn("  {task.description}"),
                BarColumn(bar_width=24),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                console=self._console,
                transient=True,
            )
            self._bars.start()
            self._poller.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._closing.set()
        if self._bars is not None:
            self._poller.join()
            self._bars.stop()

    def on_event(self, event: Event) -> None:
        """Show one event of the run."""
        path = event.task_path
        if event.kind == "attempt_started":
            self._start(path, event)
        elif event.kind == "waiting":
            self._bar(path, str(event.payload.get("reason", "")))
        elif event.kind == "cache" and event.payload.get("hit"):
            self._cached.add(path)
        elif event.kind == "retry":
            self._line(f"  ↻ {self._label(path)} failed and is tried again")
        elif event.kind == "task" and event.payload.get("state") in MARKS:
            self._end(path, event)
        elif event.kind == "info":
            self._line(f"  · {event.payload.get('message', '')}")

    def _start(self, path: str, event: Event) -> None:
        self._started[path] = event.time
        self._logs[path] = Path(event.payload["log"])
        self._bar(path, "")

    def _bar(self, path: str, detail: str) -> None:
        """Show a task that waits or runs, on a terminal."""
        if self._bars is None:
            return
        if path not in self._bar_ids:
            self._bar_ids[path] = self._bars.add_task(self._label(path), total=None, detail="")
        self._bars.update(self._bar_ids[path], detail=detail)

    def _end(self, path: str, event: Event) -> None:
        if self._state(path) is None or self._kind(path) != "container":
            return
        if path in self._bar_ids and self._bars is not None:
            self._bars.remove_task(self._bar_ids.pop(path))
        state = event.payload["state"]
        if state == "CANCELED" and path not in self._started:
            return
        self._done += state == "SUCCEEDED"
        seconds = event.time - self._started.pop(path, event.time)
        detail = "cached" if path in self._cached else f"{seconds:.1f} s"
        error = event.payload.get("error") or ""
        count = f"{self._done}/{self._total()}"
        self._line(
            f"{self._clock(event.time)} {MARKS[state]} {count:>6}  {self._label(path):34} {detail}"
            + (f"  {error}" if error and state != "SUCCEEDED" else "")
        )

    def _line(self, text: str) -> None:
        self._console.print(text, markup=False, soft_wrap=True)

    def _clock(self, now: float) -> str:
        minutes, seconds = divmod(int(now - self._begun), 60)
        return f"{minutes:3d}:{seconds:02d}"

    def _state(self, path: str) -> TaskState | None:
        if path not in self._tasks:
            from longstride.runner import read_tasks

            self._tasks = {task.path: task for task in read_tasks(self._run_dir)}
        return self._tasks.get(path)

    def _kind(self, path: str) -> str:
        state = self._state(path)
        return state.kind if state else ""

    def _total(self) -> int:
        return sum(task.kind == "container" for task in self._tasks.values())

    def _label(self, path: str) -> str:
        """Display names from the stage down, without the root and the exit handler's group."""
        names: list[str] = []
        state = self._state(path)
        while state is not None and state.parent:
            if not (state.kind == "dag" and state.name.startswith("exit-handler")):
                names.append(state.display_name)
            state = self._state(state.parent)
        return " / ".join(reversed(names)) or path

    def _poll(self) -> None:
        while not self._closing.wait(POLL_SECONDS):
            for path, bar in list(self._bar_ids.items()):
                self._update(path, bar)

    def _update(self, path: str, bar: Any) -> None:
        log = self._logs.get(path)
        if log is None or self._bars is None:
            return
        try:
            value = json.loads((log.parent / "progress.json").read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return
        elapsed = value["updated_at"] - value["started_at"]
        left = elapsed * (value["total"] - value["done"]) / max(1, value["done"])
        detail = f"{value['done']}/{value['total']} {value['unit']}  {value['message']}"
        if value["done"] < value["total"]:
            detail += f"  {left:.0f} s left"
        self._bars.update(bar, completed=value["done"], total=value["total"], detail=detail)
