"""Placeholders and texts that look like them."""

import re

import pytest
from kfp import dsl
from runner_parts import environment_value, light, number, text

from longstride.runner import execute, load_ir


@light
def write_file(path: str) -> str:
    import os

    os.makedirs(os.path.dirname(path), exist_ok=True)
    with open(path, "w") as file:
        file.write("kept")
    return path


@light
def read_file(path: str) -> str:
    return open(path).read()


def test_every_placeholder_of_the_dsl_is_filled_in(run):
    values = {
        "job": dsl.PIPELINE_JOB_NAME_PLACEHOLDER,
        "id": dsl.PIPELINE_JOB_ID_PLACEHOLDER,
        "resource": dsl.PIPELINE_JOB_RESOURCE_NAME_PLACEHOLDER,
        "created": dsl.PIPELINE_JOB_CREATE_TIME_UTC_PLACEHOLDER,
        "scheduled": dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER,
        "task": dsl.PIPELINE_TASK_NAME_PLACEHOLDER,
        "task_id": dsl.PIPELINE_TASK_ID_PLACEHOLDER,
        "root": dsl.PIPELINE_ROOT_PLACEHOLDER + "/tmp",
    }

    @dsl.pipeline(name="named-run")
    def placeholders():
        for value in values.values():
            text(value=value)

    done = run(placeholders)
    paths = ["text", *(f"text-{i}" for i in range(2, len(values) + 1))]
    got = dict(zip(values, [done.output(path) for path in paths], strict=True))
    assert re.fullmatch(r"[0-9a-f-]{36}", got["id"])
    assert got["job"] == f"named-run-{got['id'][:8]}"
    assert got["resource"] == f"runs/{got['id']}"
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", got["created"])
    assert got["scheduled"] == got["created"]
    assert got["task"] == "text-6"
    assert re.fullmatch(r"[0-9a-f-]{36}", got["task_id"])
    assert got["root"] == f"{done.directory}/tmp"


def test_the_schedule_time_is_the_one_the_schedule_meant(compiled, tmp_path):
    @dsl.pipeline
    def scheduled() -> str:
        return text(value=dsl.PIPELINE_JOB_SCHEDULE_TIME_UTC_PLACEHOLDER).output

    ir = load_ir(compiled(scheduled))
    result = execute(ir, tmp_path / "run", {}, run_id="r1", run_name="nightly", scheduled_at=0.0)
    assert result.outputs["parameters"] == {"Output": "1970-01-01T00:00:00Z"}


def test_texts_are_composed_from_parameters_of_any_type(run):
    @dsl.pipeline
    def composed(n: int, flag: bool):
        text(value=f"{n}/{flag}/{number(value=n).output}/{dsl.PIPELINE_TASK_NAME_PLACEHOLDER}")
        text(value=f"{n}")

    done = run(composed, {"n": 3, "flag": True})
    assert done.output("text") == "3/true/3/text"
    assert done.output("text-2") == "3"


@pytest.mark.parametrize(
    "lookalike",
    ["{{$.pipeline_job_name}}", "{{$.inputs.parameters['value']}}", "{{$}}", "a {{$.nothing}} b"],
)
def test_a_value_that_looks_like_a_placeholder_stays_as_it_is(run, lookalike):
    @dsl.pipeline
    def literal(value: str):
        again = text(value=text(value=value).output)
        text(value=f"<{again.output}>")

    done = run(literal, {"value": lookalike})
    assert done.output("text-2") == lookalike
    assert done.output("text-3") == f"<{lookalike}>"


def test_an_unknown_placeholder_in_a_constant_stays_as_it_is(run):
    @dsl.pipeline
    def literal():
        text(value="{{$.no_such_thing}} and {{$.pipeline_job_name")

    assert run(literal).output("text") == "{{$.no_such_thing}} and {{$.pipeline_job_name"


def test_a_file_in_the_workspace_is_seen_by_later_tasks_and_kept(run):
    config = dsl.PipelineConfig(workspace=dsl.WorkspaceConfig(size="1Gi"))

    @dsl.pipeline(pipeline_config=config)
    def workspace():
        path = write_file(path=dsl.WORKSPACE_PATH_PLACEHOLDER + "/deep/file.txt")
        read_file(path=path.output)

    done = run(workspace)
    assert done.output("read-file") == "kept"
    assert (done.directory / "workspace/deep/file.txt").read_text() == "kept"


def test_a_placeholder_in_a_declared_variable_is_filled_in(run):
    @dsl.pipeline
    def variables():
        environment_value(name="RUN").set_env_variable("RUN", dsl.PIPELINE_JOB_ID_PLACEHOLDER)

    assert re.fullmatch(r"[0-9a-f-]{36}", run(variables).output("environment-value"))
