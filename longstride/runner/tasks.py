"""Runs container tasks: queue, slots, processes, retries, deadlines, cancellation."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from longstride.errors import PipelineError
from longstride.runner import attempts
from longstride.runner.attempts import Outcome, RunPlace
from longstride.runner.eventlog import EventLog
from longstride.runner.forkserver import PRELOAD_VARIABLE, ChildEvent, ForkServer
from longstride.runner.ir import Executor, PipelineIR, cpu_slots, gpu_slots
from longstride.runner.nodes import Node
from longstride.runner.options import ExecutorOptions
from longstride.runner.placeholders import PlaceholderScope, expand
from longstride.runner.pool import Grant, WorkerPool
from longstride.runner.processes import kill_group
from longstride.runner.state import (
    CANCELED,
    CANCELING,
    FAILED,
    PENDING,
    RUNNING,
    SUCCEEDED,
    Attempt,
)


@dataclass
class Job:
    """A task that waits for slots, for its fork server, or for the next try."""

    node: Node
    executor: Executor
    cpus: int
    gpus: int
    not_before: float = 0.0
    grant: Grant | None = None
    told: str = ""


@dataclass
class Running:
    """An attempt with a process. `cause` says why we killed it, if we did."""

    job: Job
    grant: Grant
    attempt: Attempt
    deadline: float | None
    pid: int = 0
    kill_at: float | None = None
    cause: str = ""


class TaskRunner:
    """Owns the processes of one session; calls `report` when a task starts and when it ends."""

    def __init__(
        self,
        place: RunPlace,
        options: ExecutorOptions,
        log: EventLog,
        report: Callable[[Node, Outcome], None],
    ) -> None:
        self._place = place
        self._options = options
        self._log = log
        self._report = report
        self._pool = WorkerPool(place.run_dir, options)
        self._queue: list[Job] = []
        self._running: dict[str, Running] = {}
        self._servers_told: dict[ForkServer, str] = {}

    @property
    def idle(self) -> bool:
        """True when no task runs and none waits."""
        return not self._queue and not self._running

    @staticmethod
    def profile(executor: Executor) -> str:
        """The import profile of a component; "" is the light one."""
        return executor.env.get(PRELOAD_VARIABLE, "")

    def submit(self, node: Node, executor: Executor) -> None:
        """Queue a task.

        Raises:
            PipelineError: it asks for resources that make no sense or that do not exist here.
        """
        scope = PlaceholderScope(named=self._place.named, parameters=node.scope)
        resources = expand(executor.resources, scope)
        cpus, gpus = cpu_slots(resources, node.path), gpu_slots(resources, node.path)
        if gpus > self._options.gpu_slots:
            raise PipelineError(
                f"{node.path} asks for {gpus} accelerators; this executor has "
                f"{self._options.gpu_slots}"
            )
        self._queue.append(Job(node, executor, cpus, gpus))

    def step(self, ir: PipelineIR, pending_profiles: Callable[[], list[str]]) -> None:
        """Start what can start, wait for news, and deal with it."""
        self._start_ready()
        if (self._running or self._queue) and self._pool.can_warm(ir.profiles):
            self._pool.warm(pending_profiles())
        for server, events in self._pool.wait(self._timeout()):
            for event in events:
                self._child_event(event)
            self._tell_of_server(server)
        self._enforce_deadlines()

    def _timeout(self) -> float:
        now = time.time()
        moments = [job.not_before for job in self._queue if job.not_before > now]
        for running in self._running.values():
            moments += [m for m in (running.deadline, running.kill_at) if m is not None]
        return max(0.0, min([self._options.poll_seconds, *(m - now for m in moments)]))

    # ---- starting -------------------------------------------------------------------------------

    def _start_ready(self) -> None:
        """First come, first served; only a task that waits for a GPU lets others pass."""
        now = time.time()
        blocked = False
        for job in list(self._queue):
            if job.not_before > now:
                continue
            if job.grant is None and not blocked:
                job.grant = self._pool.take(job.cpus, job.gpus)
                if job.grant is None:
                    short_of_cpu = min(job.cpus, self._options.cpu_slots) > self._pool.free_cpus
                    self._tell(
                        job, "waiting for CPU slots" if short_of_cpu else "waiting for GPU slots"
                    )
                    blocked = short_of_cpu
            if job.grant is not None:
                self._launch(job, job.grant)

    def _tell(self, job: Job, reason: str) -> None:
        if job.told != reason:
            job.told = reason
            self._log.event("waiting", job.node.path, {"reason": reason})

    def _launch(self, job: Job, grant: Grant) -> None:
        server = self._pool.server(self.profile(job.executor))
        if server.state == "warming":
            self._tell(job, f"waiting for imports: {server.profile or 'light profile'}")
            return
        self._queue.remove(job)
        node = job.node
        node.attempts += 1
        directory = attempts.task_directory(self._place, node.path) / f"attempt-{node.attempts}"
        attempt = Attempt(
            number=node.attempts,
            pid=None,
            started_at=time.time(),
            finished_at=None,
            exit_code=None,
            error=None,
            log_path=str(directory / "log.txt"),
            directory=str(directory),
            cpu_seconds=None,
            peak_rss_bytes=None,
        )
        # Recorded before its directory exists: a number that was ever used is never used again.
        with self._log.transaction():
            self._report(node, Outcome(RUNNING))
            self._log.start_attempt(node.path, attempt)
        attempts.prepare(node, job.executor, directory)
        running = Running(job, grant, attempt, self._deadline(job.executor, attempt.started_at))
        try:
            if server.state == "broken":
                raise PipelineError(server.error)
            request = attempts.fork_request(
                node, job.executor, self._place, self._options, grant, attempt
            )
        except PipelineError as error:
            with open(attempt.log_path, "a", encoding="utf-8") as log:
                log.write(f"{server.error_detail}{error}\n")
            self._finished(running, 1, str(error), retry=False)
            return
        self._running[request["id"]] = running
        server.fork(request)

    def _deadline(self, executor: Executor, started_at: float) -> float | None:
        seconds = int(executor.platform.get("activeDeadlineSeconds", 0))
        return started_at + seconds if seconds else None

    # ---- news from processes --------------------------------------------------------------------

    def _child_event(self, event: ChildEvent) -> None:
        running = self._running.get(event.id)
        if running is None:
            return
        path, number = running.job.node.path, running.attempt.number
        if event.kind == "started":
            running.pid = event.pid
            self._log.update_attempt(path, number, pid=event.pid)
            if running.cause:
                kill_group(event.pid, signal.SIGTERM)
            return
        del self._running[event.id]
        usage = {"cpu_seconds": event.cpu_seconds, "peak_rss_bytes": event.peak_rss_bytes}
        error = ""
        if running.cause:
            error = running.cause
        elif event.code != 0:
            error = attempts.read_error(Path(running.attempt.directory), event.code)
        self._finished(running, event.code, error, retry=True, usage=usage)

    def _finished(
        self,
        running: Running,
        code: int,
        error: str,
        retry: bool,
        usage: dict[str, float] | None = None,
    ) -> None:
        node, job = running.job.node, running.job
        self._pool.give_back(running.grant)
        job.grant = None
        outcome = Outcome(SUCCEEDED)
        if not error:
            try:
                directory = Path(running.attempt.directory)
                outputs, absent = attempts.read_outputs(node, directory)
                outcome = Outcome(SUCCEEDED, outputs=outputs, absent=absent)
            except PipelineError as problem:
                error = str(problem)
        canceled = error.startswith("canceled: ")
        if canceled:
            outcome = Outcome(CANCELED, reason=error.removeprefix("canceled: "), error=error)
        elif error:
            outcome = Outcome(FAILED, error=error)
        with self._log.transaction():
            self._log.update_attempt(
                node.path,
                running.attempt.number,
                finished_at=time.time(),
                exit_code=code,
                error=error or None,
                **(usage or {}),
            )
            if error and retry and not canceled and self._retry(job, error):
                outcome = Outcome(PENDING)
            self._report(node, outcome)

    def _retry(self, job: Job, error: str) -> bool:
        job.node.failures += 1
        policy = job.node.spec.retry
        if job.node.failures > policy.max_retries:
            return False
        wait = policy.wait(job.node.failures)
        payload = {"failures": job.node.failures, "wait_seconds": wait, "error": error}
        self._log.event("retry", job.node.path, payload)
        job.not_before = time.time() + wait
        job.told = ""
        self._queue.append(job)
        return True

    def _tell_of_server(self, server: ForkServer) -> None:
        """Report once that a fork server is ready and what it took, and once that it broke."""
        if server.state == "warming" or self._servers_told.get(server) == server.state:
            return
        self._servers_told[server] = server.state
        payload = {
            "profile": server.profile,
            "state": server.state,
            "import_seconds": server.warm_seconds,
            "threads": server.threads,
            "error": server.error,
        }
        self._log.event("fork_server", payload=payload)

    # ---- deadlines and cancellation -------------------------------------------------------------

    def _enforce_deadlines(self) -> None:
        now = time.time()
        for running in self._running.values():
            if running.deadline is not None and now >= running.deadline and not running.cause:
                seconds = int(running.job.executor.platform["activeDeadlineSeconds"])
                self._terminate(running, f"timeout: did not finish within {seconds} s")
            if running.kill_at is not None and now >= running.kill_at:
                kill_group(running.pid, signal.SIGKILL)
                running.kill_at = None

    def _terminate(self, running: Running, cause: str) -> None:
        running.cause = cause
        running.deadline = None
        running.kill_at = time.time() + self._options.grace_seconds
        kill_group(running.pid, signal.SIGTERM)

    def cancel(self, reason: str, everything: bool) -> list[Node]:
        """Stop what runs and forget what waits.

        Args:
            reason: why, for the record.
            everything: kill at once, exit tasks included.

        Returns:
            Tasks that waited and will not run.
        """
        kept = [job for job in self._queue if job.node.spec.is_exit_task and not everything]
        dropped = [job for job in self._queue if job not in kept]
        self._queue = kept
        for job in dropped:
            if job.grant is not None:
                self._pool.give_back(job.grant)
        for running in self._running.values():
            if running.job.node.spec.is_exit_task and not everything:
                continue
            self._report(running.job.node, Outcome(CANCELING))
            if everything:
                running.cause = f"canceled: {reason}"
                kill_group(running.pid, signal.SIGKILL)
            elif not running.cause:
                self._terminate(running, f"canceled: {reason}")
        return [job.node for job in dropped]

    def close(self) -> None:
        """Kill every process that is left."""
        self._pool.close()
