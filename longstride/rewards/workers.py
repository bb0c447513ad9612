"""Verifiers that may hang, in processes that are killed when they do."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Self

import longstride
from longstride.rewards.protocol import Judgment, NotJudged, Score
from longstride.rewards.worker_main import Job, package_of

START_SECONDS = 120.0
"""Longest time that loading a verifier's package may take, on a busy machine."""
_GROW_AFTER_SECONDS = 0.5
_MANY_SECONDS = 2.0
_MOST_FAILED_STARTS = 3
_READ_BYTES = 1 << 16
_BETWEEN_EOF_AND_END_SECONDS = 0.2
_LONGEST_REPLY = 1 << 16
ACCEPTED = 1.0
"""Scorers give partial credit for near misses; only full marks are correct.

Not a little below: reasoning-gym's spell_backward sums n times 1/n, so that "abcdefx" earns
0.9999999999999999 where "abcdef" is asked.
"""


class _Worker:
    """One child process, idle or with one job."""

    def __init__(self, memory: int, deadline: float) -> None:
        root = str(Path(longstride.__file__).parents[1])
        path = os.pathsep.join([root, *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, "-m", "longstride.rewards.worker_main", str(os.getpid()), str(memory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        )
        assert self.process.stdin is not None and self.process.stdout is not None
        self.input = self.process.stdin.fileno()
        self.output = self.process.stdout.fileno()
        os.set_blocking(self.input, False)
        os.set_blocking(self.output, False)
        self.deadline_seconds = deadline
        self.place: int | None = None
        self.since = 0.0
        self.loading = 0
        self.child: int | None = None
        self.reviving = False
        self.number = 0
        self.due = 0.0
        self._ahead: deque[Job] = deque()
        self._unsent = b""
        self._unread = b""

    @property
    def free(self) -> bool:
        """Whether it can take a job at once."""
        return self.place is None and not self.loading and not self.reviving and not self._unsent

    @property
    def busy(self) -> bool:
        """Whether something is to come from it."""
        return self.place is not None or self.loading > 0 or self.reviving

    @property
    def sending(self) -> bool:
        """Whether part of a job is not yet in the pipe."""
        return bool(self._unsent)

    def give(self, job: Job, place: int | None) -> None:
        """Hand it a job, or only its package to load when `place` is None."""
        self.place = place
        self.loading += 1
        self.since = time.monotonic()
        self._ahead.append(job)
        if self.loading == 1:
            self._send_next()

    def _send_next(self) -> None:
        """Send one job: a child that ends to have a package loaded loses what it has read ahead."""
        self.number += 1
        job = {**self._ahead.popleft(), "number": self.number}
        self._unsent += json.dumps(job).encode() + b"\n"
        self.due = time.monotonic() + START_SECONDS
        self.send()

    def send(self) -> None:
        """Write what the pipe takes. Raises OSError when the process is gone."""
        while self._unsent:
            try:
                written = os.write(self.input, self._unsent)
            except BlockingIOError:
                return
            self._unsent = self._unsent[written:]

    def replies(self) -> Iterable[dict[str, Any]]:
        """What it said since. Raises EOFError when the process is gone or says too much."""
        while True:
            try:
                data = os.read(self.output, _READ_BYTES)
            except BlockingIOError:
                break
            if not data or len(self._unread) > _LONGEST_REPLY:
                raise EOFError
            self._unread += data
        *lines, self._unread = self._unread.split(b"\n")
        for line in lines:
            reply: dict[str, Any] = json.loads(line)
            if "started" in reply or "unavailable" in reply:
                self.loading -= 1
                if self._ahead:
                    self._send_next()
                elif not self.loading:
                    self.due = time.monotonic() + self.deadline_seconds
            if "pid" in reply:
                self.child = int(reply["pid"])
            yield reply

    def revived(self) -> None:
        """Another child took the place of one that died, and knows of no job."""
        self.place, self.reviving, self.loading = None, False, 0
        self._ahead.clear()

    def stop_job(self) -> None:
        """Kill the child that works at the present job; another one takes its place."""
        self.place, self.reviving = None, True
        self.due = time.monotonic() + START_SECONDS
        if self.child is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.child, signal.SIGKILL)

    def kill(self, *, gone: bool = False) -> int | None:
        """End it at once. Returns the exit code that it had, None when it was running."""
        try:
            code: int | None = self.process.wait(_BETWEEN_EOF_AND_END_SECONDS if gone else 0)
        except subprocess.TimeoutExpired:
            code = None
            self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()
        return code


class VerifierProcesses:
    """Up to `workers` processes, each with at most one job, which it must finish by a deadline.

    The first process starts with the first job (or `prepare`); others join when jobs have waited
    half a second, so that a job that hangs holds up none of the rest.

    Attributes:
        started: processes started so far.
        killed: of them, how many a deadline ended.
    """

    def __init__(self, deadline_seconds: float, workers: int, memory_bytes: int) -> None:
        self.deadline_seconds = deadline_seconds
        self.workers = workers
        self.memory_bytes = memory_bytes
        self.started = 0
        self.killed = 0
        self._pool: list[_Worker] = []
        self._again: list[int] = []
        self._failed_starts = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, jobs: Iterable[Job]) -> None:
        """Start a process that loads the packages of these kinds of jobs; does not wait for it."""
        wanted = {package_of(job): job for job in jobs}
        if not wanted or self._pool:
            return
        worker = self._start()
        for job in wanted.values():
            worker.give(_package_job(job), None)

    def run(self, jobs: Sequence[Job]) -> list[Judgment]:
        """Judge all jobs, in their order.

        In the worst case, when all of them hang, it takes `len(jobs) / workers` deadlines.
        """
        self._failed_starts = 0
        results: list[Judgment | None] = [None] * len(jobs)
        waiting = deque(range(len(jobs)))
        begun = time.monotonic()
        while waiting or any(worker.place is not None for worker in self._pool):
            self._assign(jobs, waiting, results, begun)
            busy = [worker for worker in self._pool if worker.busy]
            self._wait(busy, bool(waiting))
            for worker in busy:
                self._follow(worker, results)
            waiting.extendleft(self._again)
            self._again.clear()
        found = [result for result in results if result is not None]
        assert len(found) == len(jobs)
        return found

    def close(self) -> None:
        """End every process."""
        for worker in self._pool:
            worker.kill()
        self._pool.clear()

    def _start(self) -> _Worker:
        worker = _Worker(self.memory_bytes, self.deadline_seconds)
        self._pool.append(worker)
        self.started += 1
        return worker

    def _assign(
        self,
        jobs: Sequence[Job],
        waiting: deque[int],
        results: list[Judgment | None],
        begun: float,
    ) -> None:
        while waiting:
            if self._failed_starts >= _MOST_FAILED_STARTS:
                why = "the verifiers' processes end before they are ready"
                results[waiting.popleft()] = NotJudged("unavailable", why)
                continue
            free = next((worker for worker in self._pool if worker.free), None)
            if free is None and self._wants_more(begun):
                try:
                    # It loads what the next job needs, and takes one when it has.
                    self._start().give(_package_job(jobs[waiting[0]]), None)
                except OSError as error:
                    if not self._pool:
                        results[waiting.popleft()] = NotJudged(
                            "unavailable", f"no verifier process could be started: {error}"
                        )
                        continue
            if free is None:
                return
            place = waiting.popleft()
            try:
                free.give(jobs[place], place)
            except OSError:
                # It died while idle: nothing of this job has been looked at.
                self._pool.remove(free)
                free.kill()
                waiting.appendleft(place)

    def _wants_more(self, begun: float) -> bool:
        """Whether to start a process: for the first job, beside a slow one, or for many."""
        if not self._pool:
            return True
        if len(self._pool) >= self.workers or any(worker.loading for worker in self._pool):
            return False
        now = time.monotonic()
        slow = any(w.busy and now - w.since >= _GROW_AFTER_SECONDS for w in self._pool)
        return slow or now - begun >= _MANY_SECONDS

    def _wait(self, busy: Sequence[_Worker], more: bool) -> None:
        if not busy:
            return
        due = min(worker.due for worker in busy) - time.monotonic()
        if more and len(self._pool) < self.workers:
            due = min(due, _GROW_AFTER_SECONDS)
        with selectors.DefaultSelector() as selector:
            for worker in busy:
                selector.register(worker.output, selectors.EVENT_READ)
                if worker.sending:
                    selector.register(worker.input, selectors.EVENT_WRITE)
            selector.select(max(0.0, due))

    def _follow(self, worker: _Worker, results: list[Judgment | None]) -> None:
        """Take what a worker says; kill it when it is late, and forget it when it is gone."""
        try:
            worker.send()
            for reply in worker.replies():
                self._take(reply, worker, results)
        except (OSError, EOFError):
            self._retire(worker, results, "died")
            return
        if not worker.busy or time.monotonic() < worker.due:
            return
        if worker.place is None or worker.loading or worker.sending or worker.child is None:
            self._retire(worker, results, "timeout")
            return
        self.killed += 1
        results[worker.place] = NotJudged("timeout", f"killed after {self.deadline_seconds:g} s")
        worker.stop_job()

    def _take(self, reply: dict[str, Any], worker: _Worker, results: list[Judgment | None]) -> None:
        if "died" in reply:
            if worker.place is not None:
                why = f"the verifier's process ended with code {reply['died']}"
                results[worker.place] = NotJudged("died", why)
            worker.revived()
            return
        judgment = _judgment(reply)
        current = reply.get("number") == worker.number
        if judgment is not None and worker.place is not None and current:
            results[worker.place] = judgment
            worker.place = None

    def _retire(self, worker: _Worker, results: list[Judgment | None], why: str) -> None:
        self._pool.remove(worker)
        loading = worker.loading
        self._failed_starts += bool(loading)
        code = worker.kill(gone=why == "died")
        if worker.place is None:
            return
        if why == "died" and loading:
            # Nothing of this job has been looked at.
            self._again.append(worker.place)
            return
        if why == "timeout":
            late = "was not loaded" if loading else "did not come back"
            judgment = NotJudged("unavailable", f"its verifier {late} in {START_SECONDS:g} s")
        else:
            judgment = NotJudged("died", f"the verifier's process ended with code {code}")
        results[worker.place] = judgment


def _package_job(job: Job) -> Job:
    return {name: value for name, value in job.items() if name in ("kind", "family")}


def _judgment(reply: dict[str, Any]) -> Judgment | None:
    if "score" in reply:
        value = min(1.0, max(0.0, float(reply["score"])))
        if value != value:
            return NotJudged("error", "the verifier's score is not a number")
        return Score(value, correct=float(reply["score"]) >= ACCEPTED)
    if "error" in reply:
        return NotJudged("error", f"the verifier raised {reply['error']}")
    if "unavailable" in reply:
        return NotJudged("unavailable", reply["unavailable"])
    return None
