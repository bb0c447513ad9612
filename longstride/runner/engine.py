"""The executor's core: walks the DAG, hands tasks to processes, and writes down what happens."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from longstride.errors import PipelineError
from longstride.runner import attempts
from longstride.runner.attempts import RunPlace
from longstride.runner.cache import CacheKey, TaskCache, make_key
from longstride.runner.digests import Digester
from longstride.runner.eventlog import EventLog
from longstride.runner.expressions import evaluate_condition
from longstride.runner.ir import PipelineIR
from longstride.runner.nodes import Node, iteration_node, root_node
from longstride.runner.options import ExecutorOptions
from longstride.runner.resolve import (
    Unavailable,
    dag_outputs,
    iteration_inputs,
    loop_items,
    loop_outputs,
    resolve_inputs,
)
from longstride.runner.state import (
    CANCELED,
    FAILED,
    FINAL_STATES,
    PENDING,
    RUNNING,
    SKIPPED,
    SUCCEEDED,
    TaskState,
)
from longstride.runner.tasks import TaskRunner
from longstride.runner.values import JsonObject, Values, canonical

# Up to this much is digested in the event loop: a tenth of a second or less.
_DIGEST_INLINE_BYTES = 64 << 20


@dataclass(frozen=True)
class Session:
    """What one executor process works with."""

    ir: PipelineIR
    place: RunPlace
    options: ExecutorOptions
    log: EventLog
    cache: TaskCache | None
    digester: Digester


class Cancellation(Protocol):
    """Where requests to cancel come from; the engine asks once per step."""

    def poll(self) -> str:
        """The reason of a new request, or an empty text."""
        ...


class Engine:
    """One session of a run: from its start, or from where an earlier session stopped."""

    def __init__(
        self, session: Session, recorded: dict[str, TaskState], parameters: JsonObject
    ) -> None:
        self._session = session
        self._ir = session.ir
        self._log = session.log
        self._recorded = recorded
        self._changed: deque[Node] = deque()
        self._canceling = ""
        self._abandon_exit_tasks = False
        self.root = root_node(session.ir)
        self.root.inputs = Values(parameters)
        self._runner = TaskRunner(session.place, session.options, session.log, self._attempt_ended)
        self._keys: dict[str, CacheKey] = {}
        self._readers = ThreadPoolExecutor(max_workers=1, thread_name_prefix="digest")
        self._digesting: list[tuple[Future[None], Callable[[], None]]] = []

    # ---- the loop -------------------------------------------------------------------------------

    def run(self, cancel_requests: Cancellation) -> Node:
        """Run until the root has ended. Returns the root node."""
        try:
            with self._log.transaction():
                self._announce(self.root)
            self._start_group(self.root)
            while not self.root.final:
                self._settle()
                if self.root.final:
                    break
                self._collect_digests()
                if reason := cancel_requests.poll():
                    self.cancel(reason)
                    continue
                if self._runner.idle and not self._digesting and not self._changed:
                    raise AssertionError("nothing runs, nothing waits, and the run has not ended")
                self._runner.step(self._ir, self._pending_profiles)
            self._readers.shutdown(wait=True, cancel_futures=bool(self._canceling))
            self._collect_digests()
        finally:
            self._readers.shutdown(wait=False, cancel_futures=True)
            self._runner.close()
        return self.root

    def cancel(self, reason: str) -> None:
        """Stop what runs, start nothing more, exit tasks apart; a second call stops those too."""
        again = bool(self._canceling)
        self._canceling, self._abandon_exit_tasks = reason, again
        self._log.event("canceling", payload={"reason": reason, "again": again})
        for node in self._runner.cancel(reason, again):
            self._end(node, CANCELED, reason=reason)
        self._changed.extend(node for node in self._groups(self.root) if not node.final)

    def _settle(self) -> None:
        """Follow every consequence of what just changed, until nothing changes any more."""
        while self._changed:
            node = self._changed.popleft()
            if node.final or node.state == PENDING:
                continue
            if node.kind == "loop":
                self._advance_loop(node)
            else:
                self._advance_dag(node)

    def _groups(self, node: Node) -> list[Node]:
        """DAGs and loops that have started, innermost last."""
        if node.kind in ("container", "importer") or node.state == PENDING:
            return []
        return [node, *(g for child in node.children.values() for g in self._groups(child))]

    def _pending_profiles(self) -> list[str]:
        """Import profiles that tasks not yet run will need, in the order of the tasks."""
        found: dict[str, None] = {}
        for leaf in self.root.leaves():
            if leaf.kind == "container" and not leaf.final:
                executor = self._ir.executors[leaf.component.executor or ""]
                found[self._runner.profile(executor)] = None
        return list(found)

    # ---- records --------------------------------------------------------------------------------

    def _announce(self, node: Node) -> None:
        """Make a subtree known in the database, and take over what an earlier session recorded."""
        parent = node.parent.path if node.parent else ""
        fixed = {
            "path": node.path,
            "name": node.spec.name,
            "display_name": node.spec.display_name,
            "component": node.component.name,
            "kind": node.kind,
            "parent": parent,
        }
        self._log.add_task(fixed, [] if node.is_iteration else [d.path for d in node.depends])
        previous = self._recorded.get(node.path)
        if previous is not None:
            node.recorded, node.recorded_state = previous, previous.state
            node.attempts = max((a.number for a in previous.attempts), default=0)
            if previous.state not in (SUCCEEDED, PENDING):
                self._write(node, PENDING, started_at=None, finished_at=None, reason="", error=None)
        for child in node.children.values():
            self._announce(child)

    def _write(self, node: Node, state: str, **changes: object) -> None:
        if node.recorded_state != state:
            self._log.update_task(node.path, state=state, **changes)
            node.recorded_state = state

    def _mark_executed(self, node: Node) -> None:
        """Note that a task really runs in this session, and that its groups therefore run, too."""
        node.executed = True
        group = node.parent
        while group is not None and not group.executed:
            group.executed = True
            self._write(group, RUNNING, finished_at=None, error=None)
            group = group.parent

    def _end(self, node: Node, state: str, reason: str = "", error: str | None = None) -> None:
        node.state, node.error = state, error
        if state == FAILED and not node.failed_path:
            node.failed_path = node.path
        with self._log.transaction():
            if state in (SKIPPED, CANCELED):
                for child in node.children.values():
                    if not child.final:
                        self._end(child, state, reason=reason)
            outputs = {**node.outputs.to_json(), "absent": node.absent_outputs}
            inputs = node.inputs.to_json()
            self._write(
                node,
                state,
                finished_at=time.time(),
                reason=reason,
                error=error,
                inputs=inputs,
                outputs=outputs,
            )
        if node.parent is not None:
            self._changed.append(node.parent)

    # ---- groups: DAGs and loops -----------------------------------------------------------------

    def _start_group(self, node: Node) -> None:
        node.state = RUNNING
        if node.recorded_state != SUCCEEDED:
            started = time.time()
            self._write(node, RUNNING, started_at=started, inputs=node.inputs.to_json())
        if node.kind == "loop":
            try:
                node.items = loop_items(node)
            except PipelineError as error:
                self._end(node, FAILED, error=str(error))
                return
        self._changed.append(node)

    def _advance_dag(self, node: Node) -> None:
        for child in node.children.values():
            if child.state == PENDING and all(d.final for d in child.depends):
                self._decide(child)
        if all(child.final for child in node.children.values()):
            self._end_group(node, dag_outputs(node))

    def _advance_loop(self, node: Node) -> None:
        limit = node.spec.iterator.parallelism if node.spec.iterator else 0
        active = sum(not child.final for child in node.children.values())
        while len(node.children) < len(node.items) and (limit == 0 or active < limit):
            if self._canceling:
                break
            index = len(node.children)
            child = iteration_node(self._ir, node, index)
            with self._log.transaction():
                self._announce(child)
            try:
                child.inputs = iteration_inputs(node, index)
            except PipelineError as error:
                self._end(child, FAILED, error=str(error))
                continue
            child.scope = child.inputs.parameters
            self._start_group(child)
            active += 1
        started = len(node.children) == len(node.items) or self._canceling
        if started and all(child.final for child in node.children.values()):
            self._end_group(node, loop_outputs(node))

    def _end_group(self, node: Node, outputs: Values) -> None:
        children = list(node.children.values())
        node.outputs = outputs
        canceled = next((c for c in children if c.state == CANCELED), None)
        failed = next((c for c in children if c.state == FAILED), None)
        unstarted = node.kind == "loop" and len(children) < len(node.items)
        if canceled is not None or unstarted:
            self._end_canceled_group(node)
        elif failed is not None:
            node.failed_path = failed.failed_path
            self._end(node, FAILED, error=failed.error)
        else:
            self._end(node, SUCCEEDED)

    def _end_canceled_group(self, node: Node) -> None:
        self._end(node, CANCELED, reason=self._canceling, error=f"canceled: {self._canceling}")

    # ---- single tasks ---------------------------------------------------------------------------

    def _decide(self, node: Node) -> None:
        """All upstream tasks have ended: skip the task, fail it, or start it."""
        if self._canceling and (self._abandon_exit_tasks or not node.spec.is_exit_task):
            self._end(node, CANCELED, reason=self._canceling)
            return
        if not node.spec.runs_after_failure:
            for upstream in node.depends:
                if upstream.state != SUCCEEDED:
                    verb = {FAILED: "failed", CANCELED: "was canceled"}.get(
                        upstream.state, "was skipped"
                    )
                    self._end(node, SKIPPED, reason=f"upstream {upstream.path} {verb}")
                    return
        named = self._named(node)
        try:
            node.inputs, node.scope = resolve_inputs(node, named)
            wanted = not node.spec.condition or evaluate_condition(node.spec.condition, node.scope)
        except Unavailable as gone:
            self._end(node, SKIPPED, reason=str(gone))
        except PipelineError as error:
            self._end(node, FAILED, error=str(error))
        else:
            if not wanted:
                self._end(node, SKIPPED, reason=f"condition is false: {node.spec.condition}")
            elif node.kind in ("dag", "loop"):
                self._start_group(node)
            else:
                self._start_leaf(node)

    def _named(self, node: Node) -> dict[str, str]:
        return attempts.named_placeholders(
            self._session.place, node.path, node.attempts + 1, node.spec.display_name
        )

    def _start_leaf(self, node: Node) -> None:
        if self._replay(node) or self._adopt(node):
            return
        if node.kind == "importer":
            self._import(node)
            return
        node.state = RUNNING
        self._with_digests(node.inputs, lambda: self._submit(node))

    def _submit(self, node: Node) -> None:
        if self._canceling and not node.spec.is_exit_task:
            self._end(node, CANCELED, reason=self._canceling)
            return
        try:
            if not self._from_cache(node):
                self._runner.submit(node, self._ir.executors[node.component.executor or ""])
        except PipelineError as error:
            self._end(node, FAILED, error=str(error))
        except OSError as error:
            self._end(node, FAILED, error=f"cannot read an input artifact: {error}")

    def _with_digests(self, values: Values, then: Callable[[], None]) -> None:
        """Go on once the artifacts are digested; large ones are read in a thread meanwhile."""
        groups = values.artifacts.values() if self._session.cache is not None else ()
        paths = [a.local_path for group in groups for a in group if a.local_path is not None]
        digester = self._session.digester
        paths = [path for path in paths if path.exists()]
        if sum(map(digester.unread_bytes, paths)) <= _DIGEST_INLINE_BYTES:
            then()
            return

        def read() -> None:
            for path in paths:
                with suppress(OSError):  # whoever needs the digest meets the error again
                    digester.records(path)

        self._digesting.append((self._readers.submit(read), then))

    def _collect_digests(self) -> None:
        waiting, self._digesting = self._digesting, []
        for future, then in waiting:
            if future.cancelled():
                continue
            if future.done():
                then()
            else:
                self._digesting.append((future, then))

    def _adopt(self, node: Node) -> bool:
        """Take over an attempt that had finished when the executor died before noting it.

        The component's output document is the last thing it writes, after its function returned.
        """
        previous = node.recorded
        if previous is None or not previous.attempts:
            return False
        last = previous.attempts[-1]
        if last.error != attempts.EXECUTOR_DIED or last.exit_code is not None:
            return False
        if canonical(previous.inputs) != canonical(node.inputs.to_json()):
            return False
        try:
            node.outputs, node.absent_outputs = attempts.read_outputs(node, Path(last.directory))
        except PipelineError:
            return False
        with self._log.transaction():
            self._log.event("adopted", node.path, {"number": last.number})
            self._log.update_attempt(node.path, last.number, exit_code=0, error=None)
            self._mark_executed(node)
            self._log.update_task(node.path, started_at=last.started_at)
            self._end(node, SUCCEEDED)
        return True

    def _replay(self, node: Node) -> bool:
        """Take over a task that succeeded in an earlier session on the very same inputs."""
        previous = node.recorded
        if previous is None or previous.state != SUCCEEDED:
            return False
        if node.spec.runs_after_failure and any(upstream.executed for upstream in node.depends):
            return False
        if canonical(previous.inputs) != canonical(node.inputs.to_json()):
            return False
        outputs = Values.from_json(previous.outputs)
        absent = previous.outputs.get("absent", [])
        for name, group in outputs.artifacts.items():
            for artifact in group:
                path = artifact.local_path
                if name not in absent and path is not None and not path.exists():
                    self._log.event("lost_output", node.path, {"output": name, "uri": artifact.uri})
                    return False
        node.outputs, node.absent_outputs, node.state = outputs, absent, SUCCEEDED
        if node.parent is not None:
            self._changed.append(node.parent)
        return True

    def _import(self, node: Node) -> None:
        executor = self._ir.executors[node.component.executor or ""]
        self._mark_executed(node)
        now = time.time()
        self._write(node, RUNNING, started_at=now, inputs=node.inputs.to_json())
        try:
            node.outputs = attempts.import_artifact(node, executor, self._named(node))
        except PipelineError as error:
            self._end(node, FAILED, error=str(error))
        else:
            self._end(node, SUCCEEDED)

    def _from_cache(self, node: Node) -> bool:
        cache = self._session.cache
        if cache is None or not node.spec.cacheable or node.spec.is_exit_task:
            reason = "caching is off for this task"
            if node.spec.is_exit_task:
                reason = "exit tasks always run"
            elif cache is None:
                reason = "caching is off for this run"
            self._log.update_task(node.path, cache_hit=None, cache_reason=reason)
            return False
        identity = f"{self._ir.name}/{node.static_path}"
        executor = self._ir.executors[node.component.executor or ""]
        began = time.time()
        key = make_key(
            identity, node.spec, node.component, executor, node.inputs, self._session.digester
        )
        self._keys[node.path] = key
        found = cache.lookup(key)
        with self._log.transaction():
            hit = found.outputs is not None
            self._log.update_task(node.path, cache_hit=hit, cache_reason=found.reason)
            self._log.event("cache", node.path, {"hit": hit, "reason": found.reason})
            if found.outputs is not None:
                node.outputs = found.outputs
                self._mark_executed(node)
                self._write(node, RUNNING, started_at=began)
                self._end(node, SUCCEEDED)
        return hit

    def _attempt_ended(self, node: Node, outcome: attempts.Outcome) -> None:
        """Called by the runner when a task has ended for good (or has really started)."""
        if outcome.state == RUNNING:
            self._mark_executed(node)
            self._write(node, RUNNING, started_at=time.time(), inputs=node.inputs.to_json())
            return
        if outcome.state not in FINAL_STATES:
            self._write(node, outcome.state)
            return
        if outcome.state == SUCCEEDED:
            node.outputs, node.absent_outputs = outcome.outputs, outcome.absent
        self._end(node, outcome.state, reason=outcome.reason, error=outcome.error)
        key = self._keys.pop(node.path, None)
        if outcome.state == SUCCEEDED and key is not None:
            self._with_digests(node.outputs, lambda: self._remember(node, key))

    def _remember(self, node: Node, key: CacheKey) -> None:
        if self._session.cache is not None:
            origin = f"{node.path} of run {self._session.place.run_dir.name}"
            with suppress(OSError):  # an output that vanished meanwhile is not worth remembering
                self._session.cache.store(key, node.outputs, origin)
