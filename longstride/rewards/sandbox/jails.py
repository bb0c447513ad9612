"""Jailed interpreters: one program each, and a few that wait for theirs."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, Self

from longstride.rewards.sandbox.backends import SandboxUnavailable, available, command
from schemas.verification import SandboxConfig

START_SECONDS = 30.0
"""Longest time that building a jail may take, on a busy machine."""
_CHUNK = 1 << 16
_WORDS_OF_FAILURE = 2000


class JailEnded(Exception):
    """The jail is no more, or has been ended: nothing further will come from it."""

    def __init__(self, how: Literal["timeout", "output", "gone"]) -> None:
        super().__init__(how)
        self.how = how


@dataclass
class Jail:
    """One jailed interpreter. Used for one request, then ended."""

    process: subprocess.Popen[bytes]
    limit: int
    """Longest message in bytes."""
    _unread: bytes = b""

    @classmethod
    def start(cls, config: SandboxConfig) -> Self:
        """Start one; it is ready when `greet` returns.

        Raises:
            SandboxUnavailable: The backend's command cannot be run.
        """
        argv = command(available(config.backend), config)
        try:
            process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={"PATH": os.environ.get("PATH", os.defpath)},
                start_new_session=True,
            )
        except OSError as error:
            raise SandboxUnavailable(f"the sandbox cannot be started: {error}") from error
        # JSON may write a character of output in six.
        return cls(process, 6 * config.output_kb * 1024 + 4096)

    def greet(self) -> None:
        """Wait until it is ready.

        Raises:
            SandboxUnavailable: It was not built; holds what the backend said.
        """
        try:
            self.receive(time.monotonic() + START_SECONDS)
        except (JailEnded, ValueError) as error:
            self.process.kill()
            assert self.process.stderr is not None
            said = self.process.stderr.read(_WORDS_OF_FAILURE).decode("utf-8", "replace").strip()
            self.end()
            raise SandboxUnavailable(
                f"the sandbox could not be built: {said or error}; programs are judged nowhere else"
            ) from error

    def send(self, message: dict[str, Any], due: float) -> None:
        """Send a message. Raises JailEnded when it does not take it by `due` (monotonic)."""
        assert self.process.stdin is not None
        descriptor = self.process.stdin.fileno()
        os.set_blocking(descriptor, False)
        data = memoryview(json.dumps(message).encode() + b"\n")
        while data:
            left = due - time.monotonic()
            if left <= 0 or not select.select([], [descriptor], [], left)[1]:
                raise JailEnded("timeout")
            try:
                data = data[os.write(descriptor, data) :]
            except BlockingIOError:
                continue
            except OSError:
                raise JailEnded("gone") from None

    def receive(self, due: float) -> dict[str, Any]:
        """The next message.

        Raises:
            JailEnded: None came by `due` (monotonic), it is too long, or the jail is gone.
            ValueError: It is not a JSON object.
        """
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        while b"\n" not in self._unread:
            left = due - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                raise JailEnded("timeout")
            chunk = os.read(descriptor, _CHUNK)
            if not chunk:
                raise JailEnded("gone")
            self._unread += chunk
            if len(self._unread) > self.limit:
                raise JailEnded("output")
        line, _, self._unread = self._unread.partition(b"\n")
        try:
            message = json.loads(line)
        except RecursionError as error:
            raise ValueError("nested too deeply") from error
        if not isinstance(message, dict):
            raise ValueError("not an object")
        return message

    @property
    def alive(self) -> bool:
        """Whether it still runs."""
        return self.process.poll() is None

    def end(self) -> None:
        """Kill everything in it. The kernel ends the whole tree with the namespace's first."""
        if self.process.returncode is None:
            # Its group, because a jail that is still being built does not yet hang on its first
            # process.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                try:
                    stream.close()
                except BrokenPipeError:
                    continue


class Jails:
    """Hands out jails; keeps some waiting.

    A thread of its own starts those that wait, because a jail dies with the thread that started it.
    """

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self._waiting: deque[Jail] = deque()
        self._condition = threading.Condition()
        self._closed = False
        self._maker: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self) -> None:
        """Begin to fill the pool, unless it is to be empty."""
        with self._condition:
            if self.config.warm and self._maker is None and not self._closed:
                self._maker = threading.Thread(target=self._fill, daemon=True, name="jails")
                self._maker.start()

    def take(self) -> Jail:
        """A jail that is ready; the caller ends it.

        Raises:
            SandboxUnavailable: None can be built.
        """
        self.prepare()
        while True:
            with self._condition:
                jail = self._waiting.popleft() if self._waiting else None
                self._condition.notify_all()
            if jail is None:
                jail = Jail.start(self.config)
            elif not jail.alive:
                jail.end()
                continue
            jail.greet()
            return jail

    def close(self) -> None:
        """End those that wait."""
        with self._condition:
            self._closed = True
            self._condition.notify_all()
        if self._maker is not None:
            self._maker.join()
        for jail in self._waiting:
            jail.end()
        self._waiting.clear()

    def _fill(self) -> None:
        while True:
            with self._condition:
                self._condition.wait_for(
                    lambda: self._closed or len(self._waiting) < self.config.warm
                )
                if self._closed:
                    break
            try:
                jail = Jail.start(self.config)
            except SandboxUnavailable:
                return  # whoever takes one is told
            with self._condition:
                self._waiting.append(jail)
        # The jails that this thread started live no longer than it does.
