"""The fork server: a process that imported what tasks need, and forks one child per task.

Run as `python -m longstride.runner.zygote FD MODULE...`; FD is a stream socket to the executor that
carries one JSON object per line. Children are ordinary processes apart: own session and process
group, own log, own environment, own working directory, own random state. When the socket closes
because the executor is gone, every child's process group is killed before the zygote leaves.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import json
import logging
import os
import random
import select
import signal
import socket
import sys
import threading
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from longstride.runner.processes import OWNER_VARIABLE, kill_group, kill_strays

PR_SET_PDEATHSIG = 1
EXIT_COMPONENT_FAILED = 1


@dataclass(frozen=True)
class ChildTask:
    """What the forked child is to run."""

    directory: Path
    function: str
    environment: dict[str, str]
    threads: int
    seed: int


def set_parent_death_signal(number: int) -> None:
    """Ask Linux to signal this process when its parent dies; elsewhere a no-op."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, number, 0, 0, 0)


def _receive(connection: socket.socket, flags: int = 0) -> bytes:
    """What has arrived; empty when the executor is gone, however it went."""
    try:
        return connection.recv(1 << 16, flags)
    except ConnectionResetError:  # it died with messages of ours unread
        return b""


class Zygote:
    """Serves fork requests until the executor hangs up."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._pid = os.getpid()
        self._children: dict[int, str] = {}
        self._buffer = b""
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        os.set_blocking(self._wake_read, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake_write, warn_on_full_buffer=False)
        # Ctrl-C reaches the whole foreground group; the executor decides who stops, and when.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)

    def send(self, **message: Any) -> None:
        """Send one message; a dead executor is noticed by the reading side."""
        try:
            self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def serve(self) -> ChildTask | None:
        """Serve requests. Returns in a forked child with its task, in the zygote with None."""
        while True:
            sources = [self._connection.fileno(), self._wake_read]
            readable, _, _ = select.select(sources, [], [])
            if self._wake_read in readable:
                self._drain_wakeups()
            self._reap()
            if sources[0] in readable:
                chunk = _receive(self._connection)
                if not chunk:
                    self.kill_children()
                    return None
                self._buffer += chunk
                while b"\n" in self._buffer:
                    line, self._buffer = self._buffer.split(b"\n", 1)
                    task = self._handle(json.loads(line))
                    if task is not None:
                        return task

    def _drain_wakeups(self) -> None:
        try:
            os.read(self._wake_read, 4096)
        except BlockingIOError:
            return

    def _reap(self) -> None:
        for pid in list(self._children):
            if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
                continue
            # What a task left running in its group goes with it. Before the pid is released by the
            # wait, nobody else can own the group's number.
            kill_group(pid, signal.SIGKILL)
            _, status, usage = os.wait4(pid, 0)
            self.send(
                event="exited",
                id=self._children.pop(pid),
                code=os.waitstatus_to_exitcode(status),
                cpu_seconds=usage.ru_utime + usage.ru_stime,
                peak_rss_bytes=usage.ru_maxrss * 1024,
            )

    def kill_children(self) -> None:
        """Kill every child's group, and whatever left its group. In a forked child a no-op."""
        if os.getpid() != self._pid:
            return
        for pid in self._children:
            kill_group(pid, signal.SIGKILL)
        kill_strays(os.environ[OWNER_VARIABLE])

    def _handle(self, message: dict[str, Any]) -> ChildTask | None:
        directory = Path(message["directory"])
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            set_parent_death_signal(signal.SIGKILL)
            if os.getppid() != parent:
                os._exit(EXIT_COMPONENT_FAILED)
            self._become_child(directory)
            return ChildTask(
                directory,
                message["function"],
                message["environment"],
                message["threads"],
                message["seed"],
            )
        self._children[pid] = message["id"]
        self.send(event="started", id=message["id"], pid=pid)
        return None

    def _become_child(self, directory: Path) -> None:
        self._children.clear()
        signal.set_wakeup_fd(-1)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.close(self._wake_read)
        os.close(self._wake_write)
        self._connection.close()
        os.setsid()
        log = os.open(directory / "log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        null = os.open(os.devnull, os.O_RDONLY)
        os.dup2(null, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)
        os.close(null)


def _seed_random_state(seed: int) -> None:
    """Give the child random state of its own: forked siblings would share the zygote's."""
    random.seed(seed)
    numpy = sys.modules.get("numpy")
    if numpy is not None:
        numpy.random.seed(seed % 2**32)
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.manual_seed(seed)


def _limit_threads(threads: int) -> None:
    """OMP_NUM_THREADS was read when the library was loaded in the zygote; tell torch directly."""
    torch = sys.modules.get("torch")
    if torch is not None:
        torch.set_num_threads(threads)


def _configure_logging() -> None:
    """The format of KFP's executor, without its dump of the whole executor input."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(logging.Formatter("[%(asctime)s %(levelname)s] %(message)s"))
    handler.addFilter(lambda record: record.filename != "executor_main.py")
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)


def _report_error(directory: Path, error: BaseException) -> None:
    """Print the traceback to the log and leave `error.json` for the executor."""
    text = "".join(traceback.format_exception(error))
    print(text, file=sys.stderr, flush=True)
    body = {"type": type(error).__name__, "message": str(error), "traceback": text}
    partial = directory / "error.json.partial"
    partial.write_text(json.dumps(body), encoding="utf-8")
    partial.rename(directory / "error.json")


def run_child(task: ChildTask) -> int:
    """Run one component through KFP's executor and return the exit code."""
    os.chdir(task.directory)
    os.environ.update(task.environment)
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    _seed_random_state(task.seed)
    _limit_threads(task.threads)
    _configure_logging()
    from kfp.dsl import executor_main

    executor_input = (task.directory / "executor_input.json").read_text(encoding="utf-8")
    sys.argv = [
        "executor_main",
        "--component_module_path",
        str(task.directory / "ephemeral_component.py"),
        "--executor_input",
        executor_input,
        "--function_to_execute",
        task.function,
    ]
    try:
        executor_main.executor_main()
    except SystemExit as error:
        if error.code not in (None, 0):
            _report_error(task.directory, error)
            return error.code if isinstance(error.code, int) else EXIT_COMPONENT_FAILED
    except BaseException as error:  # whatever a component raises is the task's error
        _report_error(task.directory, error)
        return EXIT_COMPONENT_FAILED
    return 0


def _preload(modules: list[str]) -> None:
    os.environ["_KFP_RUNTIME"] = "true"
    for module in ["kfp", "kfp.dsl", "kfp.dsl.executor_main", *modules]:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _watch_for_hangup(connection: socket.socket, done: threading.Event) -> None:
    """Leave when the executor dies while imports are still going on."""
    while not done.wait(0.2):
        readable, _, _ = select.select([connection], [], [], 0)
        if readable and not _receive(connection, socket.MSG_PEEK):
            os._exit(EXIT_COMPONENT_FAILED)


def main(arguments: list[str]) -> int:
    """Preload, serve, and in a forked child run the task."""
    connection = socket.socket(fileno=int(arguments[0]))
    connection.set_inheritable(False)
    zygote = Zygote(connection)
    began = time.monotonic()
    done = threading.Event()
    watcher = threading.Thread(target=_watch_for_hangup, args=(connection, done), daemon=True)
    watcher.start()
    try:
        _preload(arguments[1:])
    except BaseException as error:  # whatever an import raises is reported, and nothing is served
        zygote.send(
            event="preload_failed",
            error=f"{type(error).__name__}: {error}",
            traceback=traceback.format_exc(),
        )
        return EXIT_COMPONENT_FAILED
    finally:
        done.set()
        watcher.join()
    threads = len(os.listdir("/proc/self/task")) if sys.platform == "linux" else 1
    zygote.send(event="ready", seconds=time.monotonic() - began, threads=threads)
    try:
        task = zygote.serve()
    except BaseException:  # a zygote that breaks takes its children along, like one that is told to
        zygote.kill_children()
        raise
    return 0 if task is None else run_child(task)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
