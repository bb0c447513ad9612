"""Run compiled IR on this machine: execute, resume, stop, and read what happened."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

from longstride.errors import PipelineError, UsageError
from longstride.runner.attempts import EXECUTOR_DIED, RunPlace, secret_values
from longstride.runner.cache import TaskCache
from longstride.runner.digests import Digester
from longstride.runner.engine import Engine, Session
from longstride.runner.eventlog import STATE_FILE, EventLog, read_run_record, read_tasks
from longstride.runner.ir import CLUSTER_HINT, PipelineIR, gpu_slots, load_ir
from longstride.runner.options import ExecutorOptions
from longstride.runner.processes import kill_strays
from longstride.runner.resolve import fill_defaults
from longstride.runner.state import (
    CANCELED,
    FAILED,
    FINAL_STATES,
    RUNNING,
    SUCCEEDED,
    RunResult,
    RunState,
)
from longstride.runner.values import JsonObject, coerce

LOCK_FILE = "executor.lock"
STOP_FILE = "stop.request"
IR_FILE = "ir.yaml"
RUN_FILE = "run.json"
_LOCK_TRIES = 20


class _Requests:
    """Requests to cancel: SIGTERM and SIGINT (in the main thread), and the stop file."""

    def __init__(self, run_dir: Path) -> None:
        self._stop_file = run_dir / STOP_FILE
        self._signals: list[str] = []

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        self._signals.append(signal.Signals(number).name)

    def poll(self) -> str:
        if self._signals:
            return f"received {self._signals.pop(0)}"
        if self._stop_file.exists():
            reason = self._stop_file.read_text(encoding="utf-8").strip()
            self._stop_file.unlink(missing_ok=True)
            return reason or "stop was requested"
        return ""


@contextmanager
def _signals_to(requests: _Requests) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = [signal.signal(number, requests.on_signal) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


@contextmanager
def _locked(run_dir: Path) -> Iterator[None]:
    """Hold the run directory. The kernel drops the lock with the process, however that ends.

    Raises:
        PipelineError: another executor holds it.
    """
    with (run_dir / LOCK_FILE).open("a+") as handle:
        for attempt in range(_LOCK_TRIES):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:  # a reader that probes holds it for an instant
                if attempt == _LOCK_TRIES - 1:
                    raise PipelineError(
                        f"{run_dir} is being executed by another process; wait for it or stop it"
                    ) from None
                time.sleep(0.02)
        yield


def _is_locked(run_dir: Path) -> bool:
    path = run_dir / LOCK_FILE
    if not path.exists():
        return False
    with path.open() as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _utc(moment: float) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _place(ir: PipelineIR, run_dir: Path, record: JsonObject) -> RunPlace:
    named = {
        "pipeline_job_name": record["run_name"],
        "pipeline_job_uuid": record["run_id"],
        "pipeline_job_resource_name": f"runs/{record['run_id']}",
        "pipeline_root": ir.default_root or str(run_dir),
        "pipeline_job_create_time_utc": _utc(record["created_at"]),
        "pipeline_job_schedule_time_utc": _utc(record["scheduled_at"]),
        "workspace_path": str(run_dir / "workspace"),
    }
    return RunPlace(run_dir, record["run_id"], named, ir.name)


def _checked_parameters(ir: PipelineIR, given: JsonObject) -> JsonObject:
    """Pipeline parameters with defaults filled in.

    Raises:
        UsageError: unknown or missing parameters, or a value of the wrong type.
    """
    known = ir.root.input_parameters
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise UsageError(
            f"pipeline {ir.name!r} has no parameter {', '.join(unknown)}; "
            f"it has {', '.join(sorted(known)) or 'none'}"
        )
    if missing := sorted(n for n, a in ir.root.input_artifacts.items() if not a.optional):
        raise UsageError(
            f"pipeline {ir.name!r} needs artifacts {missing}; import them in the pipeline"
        )
    values = {name: value for name, value in given.items() if value is not None}
    try:
        values = {n: coerce(v, known[n].type, f"parameter {n!r}") for n, v in values.items()}
        fill_defaults(ir.root, values, f"pipeline {ir.name!r}")
    except PipelineError as error:
        raise UsageError(str(error)) from error
    return values


def _check_resources(ir: PipelineIR, options: ExecutorOptions) -> None:
    """Refuse before anything runs what could only fail later."""
    for executor in ir.executors.values():
        if executor.kind != "python":
            continue
        name = executor.label.removeprefix("exec-")
        if "{{$" not in str(executor.resources):
            wanted = gpu_slots(executor.resources, name)
            if wanted > options.gpu_slots:
                raise PipelineError(
                    f"task {name!r} asks for {wanted} accelerators; this executor has "
                    f"{options.gpu_slots}. Raise gpu_slots if the machine has them, lower the "
                    f"request, or {CLUSTER_HINT}"
                )
        secret_values(executor, options, name)


def _write_atomically(path: Path, text: str) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.rename(path)


def _version(package: str) -> str:
    from importlib import metadata  # costs 50 ms, wanted once per run

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return ""


def execute(
    ir: PipelineIR,
    run_dir: Path,
    parameters: JsonObject,
    options: ExecutorOptions | None = None,
    run_id: str | None = None,
    run_name: str | None = None,
    scheduled_at: float | None = None,
) -> RunResult:
    """Run a pipeline in a new run directory and wait for its end.

    Args:
        ir: what to run, from `load_ir`.
        run_dir: where everything about the run goes; must hold no run yet.
        parameters: pipeline parameters; missing ones take the pipeline's defaults.
        options: slots, cache, environment.
        run_id: unique id; made up when None.
        run_name: name for people; pipeline name and id when None.
        scheduled_at: unix time at which a schedule meant the run to start.

    Raises:
        UsageError: a parameter is unknown, missing or of the wrong type.
        PipelineError: the directory is taken, or the pipeline needs what this machine lacks.
    """
    options = options or ExecutorOptions()
    run_dir = Path(run_dir).resolve()
    values = _checked_parameters(ir, parameters)
    _check_resources(ir, options)
    run_dir.mkdir(parents=True, exist_ok=True)
    with _locked(run_dir):
        if (run_dir / STATE_FILE).exists():
            raise PipelineError(
                f"{run_dir} already holds a run; resume it, or choose a new directory"
            )
        identifier = run_id or str(uuid.uuid4())
        now = time.time()
        record = {
            "run_id": identifier,
            "run_name": run_name or f"{ir.name}-{identifier[:8]}",
            "pipeline_name": ir.name,
            "ir_digest": ir.digest,
            "parameters": values,
            "created_at": now,
            "scheduled_at": now if scheduled_at is None else scheduled_at,
            "options": {
                "cpu_slots": options.cpu_slots,
                "gpu_slots": options.gpu_slots,
                "caching": options.caching,
            },
            "versions": {name: _version(name) for name in ("longstride", "kfp")},
        }
        _write_atomically(run_dir / IR_FILE, ir.text)
        _write_atomically(run_dir / RUN_FILE, json.dumps(record, indent=2))
        return _session(ir, run_dir, record, options)


def resume(run_dir: Path, options: ExecutorOptions | None = None) -> RunResult:
    """Go on with a run that was killed, canceled or failed; what had succeeded is not run again.

    Raises:
        PipelineError: the directory holds no run, or another executor is at work in it.
    """
    options = options or ExecutorOptions()
    run_dir = Path(run_dir).resolve()
    if not (run_dir / RUN_FILE).is_file():
        raise PipelineError(f"{run_dir} holds no run: {RUN_FILE} is missing")
    record = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))
    with _locked(run_dir):
        ir = load_ir(run_dir / IR_FILE)
        _check_resources(ir, options)
        if (run_dir / STATE_FILE).exists():
            current = read_run_record(run_dir)
            if current.get("state") == SUCCEEDED:
                return RunResult(SUCCEEDED, None, current.get("outputs", {}))
            kill_strays(run_dir)
        return _session(ir, run_dir, record, options)


def _bury_dead_attempts(run_dir: Path, log: EventLog) -> None:
    """Close attempts that were going on when an executor died."""
    for task in read_tasks(run_dir):
        for attempt in task.attempts:
            if attempt.finished_at is None:
                log.update_attempt(
                    task.path, attempt.number, finished_at=time.time(), error=EXECUTOR_DIED
                )


def _session(
    ir: PipelineIR, run_dir: Path, record: JsonObject, options: ExecutorOptions
) -> RunResult:
    log = EventLog(run_dir, options.listener)
    digester = Digester()
    cache_dir = options.cache_dir or run_dir.parent / ".cache"
    cache = TaskCache(cache_dir, digester) if options.caching else None
    try:
        _bury_dead_attempts(run_dir, log)
        (run_dir / STOP_FILE).unlink(missing_ok=True)
        (run_dir / "workspace").mkdir(exist_ok=True)
        recorded = {task.path: task for task in read_tasks(run_dir)}
        sessions = int(read_run_record(run_dir).get("sessions", 0)) + 1
        with log.transaction():
            started = {} if sessions > 1 else {"started_at": time.time()}
            log.set_run(
                **record,
                **started,
                state=RUNNING,
                error=None,
                finished_at=None,
                pid=os.getpid(),
                sessions=sessions,
            )
            log.event("run", payload={"state": RUNNING, "session": sessions})
            for note in ir.notes if sessions == 1 else ():
                log.event("info", payload={"message": note})
        session = Session(ir, _place(ir, run_dir, record), options, log, cache, digester)
        requests = _Requests(run_dir)
        with _signals_to(requests):
            root = Engine(session, recorded, record["parameters"]).run(requests)
        error = {FAILED: root.failure, CANCELED: root.error}.get(root.state)
        outputs = root.outputs.to_json()
        with log.transaction():
            log.set_run(
                state=root.state, error=error, finished_at=time.time(), outputs=outputs, pid=None
            )
            log.event("run", payload={"state": root.state, "error": error})
        return RunResult(root.state, error, outputs)
    finally:
        log.close()
        if cache is not None:
            cache.close()


def stop(run_dir: Path, reason: str = "stop was requested", wait_seconds: float = 0.0) -> None:
    """Ask the executor of a run to cancel it; when that executor is dead, clean up after it.

    Args:
        run_dir: the run.
        reason: recorded with the run.
        wait_seconds: how long to wait for the executor to end.

    Raises:
        PipelineError: the directory holds no run.
    """
    run_dir = Path(run_dir).resolve()
    record = read_run_record(run_dir)
    if record.get("state") in FINAL_STATES:
        return
    if _is_locked(run_dir):
        _write_atomically(run_dir / STOP_FILE, reason)
        limit = time.time() + wait_seconds
        while _is_locked(run_dir) and time.time() < limit:
            time.sleep(0.05)
        return
    with _locked(run_dir):
        kill_strays(run_dir)
        log = EventLog(run_dir)
        try:
            _bury_dead_attempts(run_dir, log)
            with log.transaction():
                for task in read_tasks(run_dir):
                    if task.state not in FINAL_STATES:
                        log.update_task(
                            task.path, state=CANCELED, finished_at=time.time(), reason=reason
                        )
                log.set_run(state=CANCELED, error=reason, finished_at=time.time(), pid=None)
                log.event("run", payload={"state": CANCELED, "error": reason})
        finally:
            log.close()


def read_run(run_dir: Path) -> RunState:
    """The run as a whole; safe while it is going on.

    Raises:
        PipelineError: the directory holds no run.
    """
    run_dir = Path(run_dir).resolve()
    record = read_run_record(run_dir)
    if not record and (run_dir / RUN_FILE).is_file():
        record = json.loads((run_dir / RUN_FILE).read_text(encoding="utf-8"))
    return RunState(
        run_id=record.get("run_id", ""),
        run_name=record.get("run_name", ""),
        pipeline_name=record.get("pipeline_name", ""),
        run_dir=str(run_dir),
        state=record.get("state", RUNNING),
        error=record.get("error"),
        created_at=record.get("created_at", 0.0),
        started_at=record.get("started_at"),
        finished_at=record.get("finished_at"),
        parameters=record.get("parameters", {}),
        outputs=record.get("outputs", {}),
        pid=record.get("pid"),
        sessions=record.get("sessions", 0),
        alive=_is_locked(run_dir),
    )
