"""CPU and GPU slots."""

import pytest
from kfp import dsl
from runner_parts import environment_value, nap

from longstride.errors import PipelineError, UsageError
from longstride.runner import ExecutorOptions, read_events


def spans(done, *paths):
    attempts = [done.tasks()[path].attempts[0] for path in paths]
    return [(a.started_at, a.finished_at) for a in attempts]


def overlap(first, second):
    return min(first[1], second[1]) > max(first[0], second[0])


@dsl.pipeline
def two_naps():
    nap(seconds=0.5)
    nap(seconds=0.51)


def test_independent_tasks_run_at_the_same_time_when_slots_allow(run):
    assert overlap(*spans(run(two_naps, cpu_slots=2), "nap", "nap-2"))


def test_one_slot_runs_them_one_after_the_other(run):
    done = run(two_naps, cpu_slots=1)
    assert not overlap(*spans(done, "nap", "nap-2"))
    waiting = [e for e in read_events(done.directory) if e.kind == "waiting"]
    assert {"reason": "waiting for CPU slots"} in [e.payload for e in waiting]


def test_a_task_that_wants_all_cpus_runs_alone_and_one_that_wants_more_gets_all(run):
    @dsl.pipeline
    def wide():
        nap(seconds=0.3)
        environment_value(name="OMP_NUM_THREADS").set_cpu_limit("2")
        environment_value(name="OMP_NUM_THREADS").set_cpu_request("64").set_caching_options(False)
        environment_value(name="OMP_NUM_THREADS").set_cpu_limit("500m").set_caching_options(False)

    done = run(wide, cpu_slots=2)
    names = ("environment-value", "environment-value-2", "environment-value-3")
    assert [done.output(name) for name in names] == ["2", "2", "1"]
    nap_span, wide_span = spans(done, "nap", "environment-value")
    assert not overlap(nap_span, wide_span)


def test_gpu_slots_are_named_in_cuda_visible_devices(run, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

    @dsl.pipeline
    def gpus():
        task = environment_value(name="CUDA_VISIBLE_DEVICES")
        task.set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(2)
        environment_value(name="CUDA_VISIBLE_DEVICES").set_caching_options(False)

    done = run(gpus, gpu_slots=2)
    assert done.output("environment-value") == "0,1"
    assert done.output("environment-value-2") == ""


def test_more_gpus_than_there_are_is_refused_before_anything_runs(run, tmp_path):
    @dsl.pipeline
    def greedy():
        nap(seconds=0.1)
        nap(seconds=0.2).set_accelerator_type("nvidia.com/gpu").set_accelerator_limit(8)

    with pytest.raises(PipelineError, match="'nap-2' asks for 8 accelerators; this executor has 1"):
        run(greedy, gpu_slots=1)
    assert not (tmp_path / "run-1").exists()


@pytest.mark.parametrize("options", [{"cpu_slots": 0}, {"gpu_slots": -1}, {"poll_seconds": 0}])
def test_impossible_options_are_a_usage_error(options):
    with pytest.raises(UsageError):
        ExecutorOptions(**options)
