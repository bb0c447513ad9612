"""The cache: hits, misses, reasons, and that it never serves what is no longer true."""

from pathlib import Path

from kfp import dsl
from runner_parts import add, make_dataset, make_folder, nap, number, read_dataset, read_metadata


@dsl.pipeline
def chain(n: int = 1):
    data = make_dataset(value=n)
    value = read_dataset(data=data.outputs["data"])
    read_metadata(data=data.outputs["data"])
    add(a=value.output, b=10)


def hits(done):
    return {path: task.cache_hit for path, task in done.tasks().items() if task.kind == "container"}


def test_a_second_run_takes_everything_from_the_first_nested_metadata_included(run):
    first, second = run(chain), run(chain)
    assert set(hits(first).values()) == {False}
    assert set(hits(second).values()) == {True}
    assert second.output("add") == 11
    assert all(not task.attempts for task in second.tasks().values())
    assert second.tasks()["add"].cache_reason == (
        "hit: same component and inputs as root/add of run run-1"
    )


def test_a_miss_says_first_time_or_what_changed(run):
    first, second = run(chain), run(chain, {"n": 2})
    assert first.tasks()["add"].cache_reason == "miss: first time this task runs"
    reasons = {path: task.cache_reason for path, task in second.tasks().items()}
    changed = "miss: changed since the nearest earlier run: "
    assert reasons["make-dataset"] == f"{changed}parameter value"
    assert reasons["read-dataset"] == f"{changed}input artifact data"
    assert reasons["add"] == f"{changed}parameter a"


def test_changed_source_code_misses(run):
    def build(expression):
        from kfp.dsl import component_factory
        from runner_parts import IMAGE

        namespace: dict = {}
        body = f"def work(x: int) -> int:\n    return {expression}\n"
        path = Path(f"/tmp/longstride_test_{abs(hash(expression))}.py")
        path.write_text(body)
        exec(compile(body, str(path), "exec"), namespace)
        component = component_factory.create_component_from_func(
            namespace["work"], base_image=IMAGE, install_kfp_package=False
        )
        path.unlink()

        @dsl.pipeline(name="versions")
        def versions():
            component(x=1)

        return versions

    run(build("x + 1"))
    second = run(build("x + 2"))
    assert second.output("work") == 3
    assert "component source" in second.tasks()["work"].cache_reason


def test_an_input_that_is_the_same_by_content_hits_wherever_it_lies(run, tmp_path):
    def importing(name):
        (tmp_path / name).write_text("5")

        @dsl.pipeline(name="importing")
        def pipeline():
            data = dsl.importer(artifact_uri=str(tmp_path / name), artifact_class=dsl.Dataset)
            read_dataset(data=data.output)

        return pipeline

    run(importing("a.txt"))
    assert run(importing("b.txt")).tasks()["read-dataset"].cache_hit is True


def test_an_output_that_was_deleted_or_changed_is_not_used(run):
    first = run(chain)
    made = Path(first.tasks()["make-dataset"].outputs["artifacts"]["data"][0]["uri"])
    made.write_text("666")
    second = run(chain)
    assert (
        "output data changed after it was recorded" in second.tasks()["make-dataset"].cache_reason
    )
    assert second.output("add") == 11
    newer = Path(second.tasks()["make-dataset"].outputs["artifacts"]["data"][0]["uri"])
    newer.unlink()
    third = run(chain)
    assert "output data no longer exists" in third.tasks()["make-dataset"].cache_reason
    assert third.tasks()["add"].cache_hit is True


def test_a_file_inside_a_folder_artifact_counts(run):
    @dsl.pipeline
    def folder():
        make_folder()

    first = run(folder)
    model = Path(first.tasks()["make-folder"].outputs["artifacts"]["model"][0]["uri"])
    assert run(folder).tasks()["make-folder"].cache_hit is True
    (model / "sub/weights.txt").write_text("v" * 10)
    assert run(folder).tasks()["make-folder"].cache_hit is False


def test_caching_can_be_off_for_a_task_and_for_a_run(run):
    @dsl.pipeline
    def mixed():
        number(value=1).set_caching_options(False)
        number(value=2)

    run(mixed)
    second = run(mixed).tasks()
    assert second["number"].cache_hit is None
    assert second["number"].cache_reason == "caching is off for this task"
    assert second["number-2"].cache_hit is True
    assert run(mixed, caching=False).tasks()["number-2"].cache_reason == (
        "caching is off for this run"
    )


def test_a_run_that_is_all_cached_starts_no_process(run):
    assert (run(chain).directory / "zygotes").exists()
    assert not (run(chain).directory / "zygotes").exists()


def test_large_artifacts_are_digested_beside_the_event_loop(run, monkeypatch):
    monkeypatch.setattr("longstride.runner.engine._DIGEST_INLINE_BYTES", 0)
    first, second = run(chain), run(chain)
    assert first.output("add") == second.output("add") == 11
    assert set(hits(second).values()) == {True}


def test_a_failed_task_is_not_remembered(run):
    @dsl.pipeline
    def failing(seconds: float):
        nap(seconds=seconds)

    assert run(failing, {"seconds": -1.0}).state == "FAILED"
    assert run(failing, {"seconds": -1.0}).tasks()["nap"].cache_hit is False


def test_a_cached_task_costs_less_than_ten_milliseconds(run):
    @dsl.pipeline
    def long_chain():
        last = number(value=0)
        for _ in range(30):
            last = add(a=last.output, b=1)

    run(long_chain)
    done = run(long_chain)
    tasks = done.tasks()
    assert done.output("add-30") == 30
    assert all(t.cache_hit for p, t in tasks.items() if t.kind == "container")
    spans = [t.finished_at - t.started_at for t in tasks.values() if t.kind == "container"]
    assert sorted(spans)[len(spans) // 2] < 0.010
