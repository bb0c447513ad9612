"""A run goes to a store and on from there, on a machine that has never seen it."""

import shutil
from pathlib import Path

import pytest
from kfp import dsl
from kfp.dsl import Dataset, Input, Output
from runner_parts import light

from longstride.errors import ConcurrentWrite, DataError, PipelineError, StoreError
from longstride.runner import ExecutorOptions, execute, load_ir, read_run, read_tasks, resume
from longstride.runner.mirror import Mirror
from longstride.runner.transfer import pull_run, push_run
from longstride.store.objects import ObjectStore


@light
def write_numbers(out: Output[Dataset]):
    with open(out.path, "w") as stream:
        stream.write("1 2 3")


@light
def sum_when_allowed(numbers: Input[Dataset], permit: str) -> int:
    open(permit).close()
    with open(numbers.path) as stream:
        return sum(map(int, stream.read().split()))


@dsl.pipeline
def needs_permit(permit: str):
    sum_when_allowed(numbers=write_numbers().output, permit=permit)


@pytest.fixture
def store(tmp_path):
    return ObjectStore(str(tmp_path / "store"), "first machine")


@pytest.fixture
def failed(compiled, tmp_path):
    """A run whose first task is done and whose second one may not run yet."""
    directory = tmp_path / "here" / "train"
    permit = tmp_path / "permit"
    ir = load_ir(compiled(needs_permit))
    result = execute(ir, directory, {"permit": str(permit)}, ExecutorOptions(caching=False))
    assert result.state == "FAILED"
    return directory, permit


def by_path(directory):
    return {task.path.removeprefix("root/"): task for task in read_tasks(directory)}


def test_a_failed_run_is_finished_on_another_machine_without_doing_anything_twice(
    failed, store, tmp_path
):
    directory, permit = failed
    pushed = push_run(directory, store)
    assert (pushed.name, pushed.attempts) == ("train", 2)
    shutil.rmtree(directory)
    there = pull_run(ObjectStore(str(tmp_path / "store"), "second"), "train", tmp_path / "there")
    permit.touch()
    result = resume(there)
    assert result.state == "SUCCEEDED", result.error
    tasks = by_path(there)
    assert tasks["sum-when-allowed"].outputs["parameters"]["Output"] == 6
    assert len(tasks["write-numbers"].attempts) == 1
    for task in tasks.values():
        for attempt in task.attempts:
            assert Path(attempt.log_path).is_relative_to(there)


def test_a_later_push_sends_what_is_new_and_the_last_state_counts(failed, store, tmp_path):
    directory, permit = failed
    push_run(directory, store)
    permit.touch()
    resume(directory)
    push_run(directory, store)
    assert len(store.names("runs/train/states")) == 1
    there = pull_run(store, "train", tmp_path / "there")
    assert read_run(there).state == "SUCCEEDED"


def test_artifacts_of_another_run_travel_with_the_run_that_took_them(compiled, store, tmp_path):
    permit = tmp_path / "permit"
    permit.touch()
    ir, runs = load_ir(compiled(needs_permit)), tmp_path / "here"
    for name in ("first", "second"):
        execute(ir, runs / name, {"permit": str(permit)})
    assert by_path(runs / "second")["write-numbers"].cache_hit
    assert push_run(runs / "second", store).imported == 1
    shutil.rmtree(runs)
    there = pull_run(store, "second", tmp_path / "there")
    (artifact,) = by_path(there)["write-numbers"].outputs["artifacts"]["out"]
    assert Path(artifact["uri"]).is_relative_to(there)
    assert Path(artifact["uri"]).read_text() == "1 2 3"


def test_two_machines_that_go_on_with_one_run_are_told_of_each_other(failed, store, tmp_path):
    directory, permit = failed
    push_run(directory, store)
    second = ObjectStore(str(tmp_path / "store"), "second machine")
    there = pull_run(second, "train", tmp_path / "there")
    permit.touch()
    resume(there)
    resume(directory)
    push_run(there, second)
    with pytest.raises(ConcurrentWrite, match="was published by second machine"):
        push_run(directory, store)


def test_a_pull_that_meets_damage_leaves_no_run_and_can_be_repeated(failed, store, tmp_path):
    directory, _ = failed
    push_run(directory, store)
    (name,) = [n for n in store.names() if "write-numbers" in n]
    digest = store.find(name).files["log.txt"].sha256
    path = tmp_path / "store" / "objects" / digest[:2] / digest
    whole = path.read_bytes()
    path.write_bytes(b"damaged")
    with pytest.raises(DataError, match=r"log.txt of .* is damaged"):
        pull_run(store, "train", tmp_path / "there")
    assert not (tmp_path / "there" / "train").exists()
    path.write_bytes(whole)
    there = pull_run(store, "train", tmp_path / "there")
    assert by_path(there)["write-numbers"].state == "SUCCEEDED"


def test_names_that_are_not_there_or_taken_are_told(failed, store, tmp_path):
    directory, _ = failed
    push_run(directory, store)
    with pytest.raises(DataError, match=r"has no run 'other'; it has \['train'\]"):
        pull_run(store, "other", tmp_path)
    with pytest.raises(DataError, match="exists already"):
        pull_run(store, "train", directory.parent)
    with pytest.raises(PipelineError, match="holds no run"):
        push_run(tmp_path, store)


def test_a_mirror_follows_the_run(compiled, store, tmp_path, eventually):
    permit, directory = tmp_path / "permit", tmp_path / "here" / "train"
    permit.touch()
    told = []
    with Mirror(directory, store, told.append) as mirror:
        options = ExecutorOptions(caching=False, listener=mirror.on_event)
        execute(load_ir(compiled(needs_permit)), directory, {"permit": str(permit)}, options)
        eventually(lambda: any("sum-when-allowed" in name for name in store.names()))
    assert told == []
    there = pull_run(store, "train", tmp_path / "there")
    assert by_path(there)["sum-when-allowed"].state == "SUCCEEDED"


def test_a_mirror_that_fails_is_told_and_the_run_goes_on(compiled, tmp_path, eventually):
    permit, directory = tmp_path / "permit", tmp_path / "here" / "train"
    permit.touch()
    store, told = ObjectStore(str(tmp_path / "store"), "me"), []
    with Mirror(directory, store, told.append) as mirror:
        shutil.rmtree(tmp_path / "store")
        (tmp_path / "store").write_text("a file where the store was")
        options = ExecutorOptions(caching=False, listener=mirror.on_event)
        result = execute(
            load_ir(compiled(needs_permit)), directory, {"permit": str(permit)}, options
        )
        eventually(lambda: told)
    assert result.state == "SUCCEEDED"
    assert "the run could not be mirrored" in told[0] and "Not a directory" in told[0]


def test_a_store_that_will_not_do_is_refused_before_the_run_begins(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    store = ObjectStore(str(tmp_path / "file" / "x"), "me")
    with pytest.raises(StoreError), Mirror(tmp_path / "run", store, print):
        raise AssertionError("the run began")
