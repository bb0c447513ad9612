"""Pipeline shapes, each compiled with the real DSL, each asserting values.

Most are shapes that the SDK's own local runner gets wrong: skips, replaces, turns into floats,
runs one after the other, or refuses.
"""

from pathlib import Path
from typing import NamedTuple, Optional

import pytest
from kfp import dsl
from kfp.dsl import Dataset, Input
from runner_parts import (
    add,
    flatten,
    kind_of,
    make_dataset,
    make_folder,
    maybe_dataset,
    maybe_text,
    named,
    nap,
    number,
    numbers,
    read_dataset,
    read_many,
    read_metadata,
    real,
    records,
    struct,
    struct_list,
    text,
    total,
    truth,
)


def test_a_lone_if_on_a_named_output_takes_its_branch(run):
    @dsl.pipeline
    def lone_if():
        gate = named(value=3)
        with dsl.If(gate.outputs["ppl"] > 2):
            number(value=7)
        with dsl.If(gate.outputs["ppl"] > 5):
            number(value=8)

    done = run(lone_if)
    assert done.output("condition-1/number") == 7
    assert done.tasks()["condition-2/number-2"].state == "SKIPPED"


@pytest.mark.parametrize("word", ["it's", 'say "hi"', 'it\'s "both"', "back\\slash'"])
def test_a_condition_on_a_string_that_contains_a_quote_compares_it(run, word):
    @dsl.pipeline
    def quotes(given: str):
        with dsl.If(given == word):
            t = text(value="yes")
        with dsl.Else():
            e = text(value="no")
        text(value=dsl.OneOf(t.output, e.output))

    assert run(quotes, {"given": word}).output("text-3") == "yes"
    assert run(quotes, {"given": "other"}).output("text-3") == "no"


@pytest.mark.parametrize(("given", "expected"), [(1, 11), (2, 12), (9, 13)])
def test_one_of_three_branches_delivers_its_artifact_and_its_parameter(run, given, expected):
    @dsl.pipeline
    def branches(n: int) -> NamedTuple("Out", [("data", Dataset), ("word", str)]):
        with dsl.If(n == 1):
            a, x = make_dataset(value=11), text(value="one")
        with dsl.Elif(n == 2):
            b, y = make_dataset(value=12), text(value="two")
        with dsl.Else():
            c, z = make_dataset(value=13), text(value="many")
        data = dsl.OneOf(a.outputs["data"], b.outputs["data"], c.outputs["data"])
        read_dataset(data=data)
        word = dsl.OneOf(x.output, y.output, z.output)
        return NamedTuple("Out", [("data", Dataset), ("word", str)])(data, word)

    done = run(branches, {"n": given})
    assert done.output("read-dataset") == expected
    artifact = done.result.outputs["artifacts"]["data"][0]
    assert Path(artifact["uri"]).read_text() == str(expected)
    assert done.result.outputs["parameters"]["word"] == {1: "one", 2: "two"}.get(given, "many")


def test_a_loop_body_sees_upstream_parameters_beside_the_item(run):
    @dsl.pipeline
    def loop():
        base = number(value=100)
        with dsl.ParallelFor([1, 2, 3]) as item:
            out = add(a=base.output, b=item)
        total(values=dsl.Collected(out.output))

    done = run(loop)
    assert [done.output(f"for-loop-2#{i}/add") for i in range(3)] == [101, 102, 103]
    assert done.output("total") == 306


def test_a_loop_over_a_list_made_at_run_time_keeps_ints(run):
    @dsl.pipeline
    def dynamic():
        source = numbers(values=[4, 5])
        with dsl.ParallelFor(source.output) as item:
            out = number(value=item)
        total(values=dsl.Collected(out.output))

    assert run(dynamic).output("total") == 9


def test_a_loop_over_a_list_without_an_element_type_keeps_what_is_in_it(run):
    @dsl.pipeline
    def untyped():
        with dsl.ParallelFor(struct_list(values=[1, "two"]).output) as item:
            kind_of(value=item)

    done = run(untyped)
    assert [done.output(f"for-loop-1#{i}/kind-of") for i in range(2)] == ["int", "str"]


def test_a_value_of_the_wrong_type_is_refused_by_task_and_input(run):
    @dsl.pipeline
    def wrong():
        with dsl.ParallelFor(struct_list(values=["two"]).output) as item:
            number(value=item)

    assert "number: input 'value': 'two' is not a NUMBER_INTEGER" in run(wrong).result.error


def test_a_loop_over_records_reads_their_fields(run):
    @dsl.pipeline
    def fields():
        with dsl.ParallelFor(records().output) as record:
            add(a=record.a, b=10)
            text(value=record.b)

    done = run(fields)
    assert [done.output(f"for-loop-1#{i}/add") for i in range(2)] == [11, 12]
    assert [done.output(f"for-loop-1#{i}/text") for i in range(2)] == ["x", "y"]


def test_nested_static_loops_see_both_items_and_collect_into_nested_lists(run):
    @dsl.pipeline
    def nested():
        with dsl.ParallelFor([1, 2]) as outer, dsl.ParallelFor([10, 20]) as inner:
            out = add(a=outer, b=inner)
            made = make_dataset(value=out.output)
        flatten(values=dsl.Collected(out.output))
        read_many(data=dsl.Collected(made.outputs["data"]))

    done = run(nested)
    assert done.output("flatten") == [11, 21, 12, 22]
    assert done.output("read-many") == [11, 21, 12, 22]


def test_artifacts_go_into_a_loop_and_are_collected_from_it(run):
    @dsl.pipeline
    def artifacts():
        source = make_dataset(value=5)
        with dsl.ParallelFor([1, 2]) as item:
            value = read_dataset(data=source.outputs["data"])
            made = make_dataset(value=add(a=value.output, b=item).output)
        read_many(data=dsl.Collected(made.outputs["data"]))

    assert run(artifacts).output("read-many") == [6, 7]


def test_a_condition_inside_a_loop_decides_each_pass(run):
    @dsl.pipeline
    def inside():
        with dsl.ParallelFor([1, 2]) as item, dsl.If(item == 2):
            number(value=item)

    tasks = run(inside).tasks()
    assert tasks["for-loop-2#0/condition-3/number"].state == "SKIPPED"
    assert tasks["for-loop-2#1/condition-3/number"].state == "SUCCEEDED"


def test_an_empty_loop_collects_an_empty_list(run):
    @dsl.pipeline
    def empty(items: list[int] = []):  # noqa: B006
        with dsl.ParallelFor(items) as item:
            out = number(value=item)
        total(values=dsl.Collected(out.output))

    assert run(empty).output("total") == 0


def test_a_loop_runs_at_most_as_many_passes_at_once_as_it_says(run):
    @dsl.pipeline
    def narrow():
        with dsl.ParallelFor([0.2, 0.21, 0.22], parallelism=1) as item:
            nap(seconds=item)

    tasks = run(narrow, cpu_slots=3).tasks()
    spans = [tasks[f"for-loop-2#{i}/nap"].attempts[0] for i in range(3)]
    assert spans[0].finished_at <= spans[1].started_at <= spans[1].finished_at
    assert spans[1].finished_at <= spans[2].started_at


def test_a_sub_pipeline_with_nothing_but_an_artifact_input(run):
    @dsl.pipeline
    def inner(data: Input[Dataset]) -> int:
        return read_dataset(data=data).output

    @dsl.pipeline
    def outer():
        first = inner(data=make_dataset(value=3).outputs["data"])
        second = inner(data=make_dataset(value=4).outputs["data"])
        add(a=first.output, b=second.output)

    assert run(outer).output("add") == 7


def test_optional_inputs_may_be_left_out_or_given(run):
    @dsl.pipeline
    def inner(data: Input[Dataset] = None, word: Optional[str] = None):  # noqa: UP045 - kfp reads only this spelling
        maybe_dataset(data=data)
        maybe_text(value=word)

    @dsl.pipeline
    def optional(word: Optional[str] = None):  # noqa: UP045 - kfp reads only this
        inner()
        inner(data=make_dataset(value=8).outputs["data"], word=word)

    done = run(optional)
    assert done.output("inner/maybe-dataset") == "nothing"
    assert done.output("inner-2/maybe-dataset") == "8"
    assert done.output("inner-2/maybe-text") == "nothing"
    assert run(optional, {"word": "w"}).output("inner-2/maybe-text") == "w"


def test_conditions_nest_inside_sub_pipelines(run):
    @dsl.pipeline
    def inner(go: bool, x: float) -> int:
        with dsl.If(go == True), dsl.If(x >= 0.5):  # noqa: E712
            number(value=1)
        return number(value=5).output

    @dsl.pipeline
    def outer():
        inner(go=truth(value=True).output, x=real(value=0.5).output)
        inner(go=truth(value=True).output, x=real(value=0.25).output)

    tasks = run(outer).tasks()
    assert tasks["inner/condition-1/condition-2/number"].state == "SUCCEEDED"
    assert tasks["inner-2/condition-1/condition-2/number"].state == "SKIPPED"


def test_types_survive_lists_objects_loops_and_metadata(run):
    @dsl.pipeline
    def types():
        data = make_dataset(value=3)
        seen = read_metadata(data=data.outputs["data"])
        again = struct(value=seen.output)
        struct(value={"whole": 2, "list": [1, number(value=4).output], "echo": again.output})

    done = run(types)
    assert repr(done.output("read-metadata")) == "{'count': 3, 'nested': {'deep': [3, 1.5, True]}}"
    echoed = done.output("struct-2")
    assert repr(echoed["echo"]) == "{'count': 3, 'nested': {'deep': [3, 1.5, True]}}"
    assert repr([echoed["whole"], echoed["list"]]) == "[2, [1, 4]]"


def test_a_float_that_is_whole_stays_a_float(run):
    @dsl.pipeline
    def floats(x: float = 2.0):
        with dsl.If(real(value=x).output == 2.0):
            real(value=3.0)

    assert repr(run(floats).output("condition-1/real-2")) == "3.0"


def test_folders_and_metrics_are_artifacts(run):
    @dsl.pipeline
    def folder():
        make_folder()

    task = run(folder).tasks()["make-folder"]
    model = Path(task.outputs["artifacts"]["model"][0]["uri"])
    assert (model / "sub/weights.txt").read_text() == "w" * 10
    assert task.outputs["artifacts"]["metrics"][0]["metadata"] == {"loss": 3}


def test_an_importer_brings_in_a_local_file(run, tmp_path):
    (tmp_path / "given.txt").write_text("42")

    @dsl.pipeline
    def importing(where: str):
        data = dsl.importer(
            artifact_uri=where, artifact_class=Dataset, metadata={"count": number(value=3).output}
        )
        read_dataset(data=data.output)
        read_metadata(data=data.output)

    done = run(importing, {"where": str(tmp_path / "given.txt")})
    assert done.output("read-dataset") == 42
    assert done.output("read-metadata") == {"count": 3}


def test_an_importer_of_nothing_fails_and_names_the_path(run):
    @dsl.pipeline
    def importing():
        dsl.importer(artifact_uri="/no/such/file", artifact_class=Dataset)

    done = run(importing)
    assert done.state == "FAILED"
    assert "cannot import /no/such/file" in done.result.error


def test_the_same_component_used_often_has_a_directory_each(run):
    @dsl.pipeline
    def often():
        make_dataset(value=1)
        make_dataset(value=2)

    tasks = run(often).tasks()
    uris = [
        tasks[n].outputs["artifacts"]["data"][0]["uri"] for n in ("make-dataset", "make-dataset-2")
    ]
    assert [Path(uri).read_text() for uri in uris] == ["1", "2"]
