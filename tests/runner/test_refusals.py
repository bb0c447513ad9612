"""What the executor refuses, before anything runs, and what it says about it."""

import pytest
from kfp import dsl
from runner_parts import IMAGE, number

from longstride.errors import PipelineError
from longstride.runner import load_ir


@dsl.container_component
def shell():
    return dsl.ContainerSpec(image="alpine:3", command=["echo"], args=["hi"])


@dsl.component(base_image=IMAGE, target_image="example.org/built:1")
def built(x: int) -> int:
    return x


@dsl.component(base_image=IMAGE, packages_to_install=["pandas==2.0"], install_kfp_package=False)
def installing(x: int) -> int:
    return x


@dsl.component(base_image=IMAGE)
def default_component(x: int) -> int:
    return x


@pytest.mark.parametrize(
    ("step", "words"),
    [
        (lambda: shell(), ["task 'shell' is a container (image 'alpine:3')"]),
        (lambda: built(x=1), ["task 'built' is a target_image component"]),
        (lambda: installing(x=1), ["task 'installing' installs packages", "pandas==2.0"]),
    ],
)
def test_what_needs_an_image_is_refused_by_task_name_with_the_alternative(compiled, step, words):
    @dsl.pipeline
    def pipeline():
        number(value=1)
        step()

    with pytest.raises(PipelineError) as refusal:
        load_ir(compiled(pipeline))
    for word in [*words, "longstride submit --host URL"]:
        assert word in str(refusal.value)


def test_a_component_that_would_only_install_kfp_itself_is_fine(run):
    @dsl.pipeline
    def pipeline():
        default_component(x=3)

    assert run(pipeline).output("default-component") == 3


def test_a_condition_outside_the_language_is_refused(compiled):
    @dsl.pipeline
    def pipeline():
        with dsl.If(number(value=1).output == 1):
            number(value=2)

    path = compiled(pipeline)
    text = path.read_text().replace("== 1", "=~ 1")
    with pytest.raises(PipelineError, match="condition-1"):
        load_ir(text)


def test_a_condition_on_a_name_that_is_no_input_is_refused(compiled):
    @dsl.pipeline
    def pipeline():
        with dsl.If(number(value=1).output == 1):
            number(value=2)

    old = "parameter_values['pipelinechannel--number-Output']"
    text = compiled(pipeline).read_text()
    broken = text.replace(old, "parameter_values['nobody']").replace(
        "parameter_values[''pipelinechannel--number-Output'']", "parameter_values[''nobody'']"
    )
    with pytest.raises(PipelineError, match="names nobody, no input of the task"):
        load_ir(broken)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty"),
        ("a: [\n", "not valid YAML"),
        ("kind: Workflow\nspec: {}\n", "not a compiled KFP v2 pipeline"),
        ("schemaVersion: 2.1.0\nroot:\n  dag:\n    tasks:\n      a: {}\n", "malformed"),
    ],
)
def test_a_file_that_is_no_pipeline_is_refused_with_the_reason(tmp_path, text, words):
    path = tmp_path / "x.yaml"
    path.write_text(text)
    with pytest.raises(PipelineError, match=words):
        load_ir(path)
