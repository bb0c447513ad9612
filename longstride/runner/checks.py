"""Static checks of compiled IR: everything that can be found wrong before a task starts."""

from __future__ import annotations

from longstride.errors import PipelineError
from longstride.runner.expressions import ExpressionError, parse_condition, referenced_names
from longstride.runner.ir import Component, Dag, PipelineIR, TaskSpec


def _check_sources(task: TaskSpec, dag: Dag, owner: Component, place: str) -> None:
    """Every input comes from somewhere that exists."""
    for name, source in {**task.parameters, **task.artifacts}.items():
        parameter = source.get("componentInputParameter")
        if parameter and parameter not in owner.input_parameters:
            raise PipelineError(
                f"{place}: input {name!r} names pipeline input {parameter!r}, not there"
            )
        artifact = source.get("componentInputArtifact")
        if artifact and artifact not in owner.input_artifacts:
            raise PipelineError(
                f"{place}: input {name!r} names artifact input {artifact!r}, not there"
            )
        for key in ("taskOutputParameter", "taskOutputArtifact", "taskFinalStatus"):
            producer = source.get(key, {}).get("producerTask")
            if producer and producer not in dag.tasks:
                raise PipelineError(
                    f"{place}: input {name!r} comes from task {producer!r}, not there"
                )


def _check_condition(task: TaskSpec, place: str) -> None:
    if not task.condition:
        return
    try:
        names = referenced_names(parse_condition(task.condition))
    except ExpressionError as error:
        raise PipelineError(f"{place}: {error}") from error
    missing = sorted(names - set(task.parameters))
    if missing:
        raise PipelineError(
            f"{place}: condition {task.condition!r} names {', '.join(missing)}, "
            f"no input of the task (inputs: {', '.join(sorted(task.parameters)) or 'none'})"
        )


def _check_cycle(dag: Dag, owner: str) -> None:
    done: set[str] = set()
    remaining = dict(dag.tasks)
    while remaining:
        free = [name for name, task in remaining.items() if set(task.depends_on) <= done]
        if not free:
            raise PipelineError(
                f"{owner}: tasks depend on each other in a circle: {sorted(remaining)}"
            )
        for name in free:
            done.add(name)
            del remaining[name]


def _check_dag(ir: PipelineIR, owner: Component, dag: Dag) -> None:
    for task in dag.tasks.values():
        place = f"task {task.name!r} in {owner.name}"
        if task.component not in ir.components:
            raise PipelineError(f"{place} uses component {task.component!r}, which is not defined")
        missing = sorted(set(task.depends_on) - set(dag.tasks))
        if missing:
            raise PipelineError(f"{place} waits for {', '.join(missing)}, not there")
        component = ir.component(task.component)
        if component.dag is None and component.executor not in ir.executors:
            raise PipelineError(
                f"{place}: no executor {component.executor!r} in the deployment spec"
            )
        if task.iterator is not None and component.dag is None:
            raise PipelineError(
                f"{place} loops over a component that is not a DAG; compile with ParallelFor"
            )
        _check_sources(task, dag, owner, place)
        _check_condition(task, place)
    _check_cycle(dag, owner.name)


def check_ir(ir: PipelineIR) -> None:
    """Check references, conditions and the absence of cycles.

    Raises:
        PipelineError: names the task, the component it is in, and what is missing.
    """
    if ir.root.dag is None:
        raise PipelineError(
            "the root of the pipeline is not a DAG; compile a @dsl.pipeline function"
        )
    for component in [ir.root, *ir.components.values()]:
        if component.dag is not None:
            _check_dag(ir, component, component.dag)
