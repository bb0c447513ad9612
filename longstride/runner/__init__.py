"""The embedded executor: runs compiled KFP v2 IR on one machine, without containers."""

from longstride.runner.eventlog import read_events, read_tasks
from longstride.runner.executor import execute, read_run, resume, stop
from longstride.runner.ir import PipelineIR, load_ir
from longstride.runner.options import ExecutorOptions
from longstride.runner.state import Attempt, Event, RunResult, RunState, TaskState

__all__ = [
    "Attempt",
    "Event",
    "ExecutorOptions",
    "PipelineIR",
    "RunResult",
    "RunState",
    "TaskState",
    "execute",
    "load_ir",
    "read_events",
    "read_run",
    "read_tasks",
    "resume",
    "stop",
]
