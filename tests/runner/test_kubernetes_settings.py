"""Settings of kfp-kubernetes: what they become on one machine."""

import json
from pathlib import Path

import pytest
from kfp import dsl, kubernetes
from runner_parts import environment_value, light, number

from longstride.errors import PipelineError
from longstride.runner import read_events


@light
def write_to_volume(mount: str) -> str:
    import json
    import os

    folder = json.loads(os.environ["LONGSTRIDE_MOUNTS"])[mount]
    with open(folder + "/note", "a") as file:
        file.write("x")
    return folder


def with_secret(optional):
    @dsl.pipeline(name="secrets")
    def secrets():
        task = environment_value(name="TOKEN")
        kubernetes.use_secret_as_env(task, "store", {"key": "TOKEN"}, optional=optional)

    return secrets


def test_a_secret_becomes_a_variable(run):
    done = run(with_secret(False), secrets={"store": {"key": "hidden"}})
    assert done.output("environment-value") == "hidden"


def test_a_secret_may_come_from_the_environment_and_is_in_no_file_of_the_executor(run):
    done = run(with_secret(False), environment={"TOKEN": "s3cret-value"})
    assert done.output("environment-value") == "s3cret-value"
    run_files = [done.directory / "run.json", done.directory / "ir.yaml"]
    assert not any("s3cret-value" in path.read_text() for path in run_files)


def test_a_missing_secret_is_refused_before_anything_runs(run):
    with pytest.raises(PipelineError, match="needs TOKEN from key 'key' of secret 'store'"):
        run(with_secret(False))


def test_a_missing_optional_secret_is_left_out(run):
    assert run(with_secret(True)).output("environment-value") == "unset"


def test_volumes_become_directories_and_claims_outlive_the_run(run):
    @dsl.pipeline
    def volumes():
        claim = write_to_volume(mount="/data").set_caching_options(False)
        kubernetes.mount_pvc(claim, pvc_name="corpus", mount_path="/data")
        scratch = write_to_volume(mount="/scratch").set_caching_options(False)
        kubernetes.empty_dir_mount(scratch, volume_name="tmp", mount_path="/scratch")

    first, second = run(volumes), run(volumes)
    claims = {done.output("write-to-volume") for done in (first, second)}
    scratches = {done.output("write-to-volume-2") for done in (first, second)}
    assert len(claims) == 1
    assert (Path(claims.pop()) / "note").read_text() == "xx"
    assert [(Path(folder) / "note").read_text() for folder in scratches] == ["x", "x"]


def test_settings_that_place_a_pod_are_ignored_and_said_once(run):
    @dsl.pipeline
    def placed():
        for value in (1, 2):
            task = number(value=value)
            kubernetes.add_toleration(task, key="gpu", operator="Exists")
            kubernetes.add_node_selector(task, label_key="zone", label_value="a")

    done = run(placed)
    notes = [e.payload["message"] for e in read_events(done.directory) if e.kind == "info"]
    assert done.state == "SUCCEEDED"
    assert len(notes) == 1
    assert "nodeSelector, tolerations" in notes[0]
    assert json.loads((done.directory / "run.json").read_text())["pipeline_name"] == "placed"
