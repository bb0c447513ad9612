"""In-progress checkpoints outlive the machine: another one goes on from their copies."""

import shutil
from pathlib import Path

import pytest
from stage_parts import (
    TORCH,
    checkpoint_bytes,
    finish,
    kill_at,
    metrics,
    prepare_sft,
    start_stage,
    wait_until_gone,
)

from longstride.errors import StoreError
from longstride.store.objects import ObjectStore
from longstride.training.offsite import STORE_VARIABLE, Copies, copies_of

MICRO = Path(__file__).parents[1] / "recipes" / "micro.yaml"
SMALL = ("sft.examples=120", "data.characters=60000", "engine.microbatch_tokens=256",
         "engine.checkpoint_every_steps=3", *TORCH)  # fmt: skip


def in_progress(folder, text):
    (folder / "batches").mkdir(parents=True, exist_ok=True)
    (folder / "step-000000003").mkdir(exist_ok=True)
    (folder / "step-000000003" / "weights").write_text(text)
    (folder / "batches" / "batch-0").write_text("samples")
    return folder


def files(folder):
    return {p.relative_to(folder).as_posix(): p.read_text()
            for p in folder.rglob("*") if p.is_file()}  # fmt: skip


def test_the_newest_copy_is_brought_back_and_older_ones_are_gone(tmp_path):
    store, here = str(tmp_path / "store"), tmp_path / "here"
    copies = Copies(store, "task")
    for text in ("first", "second"):
        copies.put(in_progress(here, text))
    copies.wait()
    assert copies.failures == []
    assert ObjectStore(store, "reader").names() == ["in-progress/task/000000002"]
    assert Copies(store, "task").restore(tmp_path / "there")
    assert files(tmp_path / "there") == files(here)
    assert files(here)["step-000000003/weights"] == "second"
    assert not Copies(store, "another-task").restore(tmp_path / "elsewhere")


def test_what_the_task_does_next_does_not_change_a_copy_on_its_way(tmp_path):
    here = in_progress(tmp_path / "here", "as it was")
    copies = Copies(str(tmp_path / "store"), "task")
    copies.put(here)
    (here / "step-000000003" / "weights").unlink()
    (here / "step-000000003" / "weights").write_text("as it is now")
    copies.wait()
    Copies(str(tmp_path / "store"), "task").restore(tmp_path / "there")
    assert files(tmp_path / "there")["step-000000003/weights"] == "as it was"


def test_a_damaged_copy_is_discarded_with_a_sentence(tmp_path, capsys):
    store = tmp_path / "store"
    copies = Copies(str(store), "task")
    copies.put(in_progress(tmp_path / "here", "text"))
    copies.wait()
    for path in (store / "objects").rglob("*"):
        if path.is_file():
            path.write_text("damaged")
    assert not Copies(str(store), "task").restore(tmp_path / "there")
    assert "discarding the copy in-progress/task/000000001" in capsys.readouterr().out
    assert not (tmp_path / "there").exists()


def test_a_store_that_fails_stops_no_training_and_is_told(tmp_path, capsys):
    (tmp_path / "file").write_text("not a folder")
    copies = Copies(str(tmp_path / "file" / "store"), "task")
    copies.put(in_progress(tmp_path / "here", "text"))
    copies.wait()
    assert len(copies.failures) == 1 and "Not a directory" in copies.failures[0]
    assert "the checkpoint could not be copied" in capsys.readouterr().out


def test_a_store_that_cannot_be_asked_is_no_reason_to_start_anew(tmp_path, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    __import__("s3fs").S3FileSystem.clear_instance_cache()
    with pytest.raises(StoreError, match="AWS_ENDPOINT_URL"):
        Copies("s3://bucket/x", "task").restore(tmp_path / "there")
    __import__("s3fs").S3FileSystem.clear_instance_cache()


def test_without_a_place_there_are_no_copies(monkeypatch):
    monkeypatch.delenv(STORE_VARIABLE, raising=False)
    assert copies_of({"stage": "sft"}) is None


def test_a_stage_killed_on_one_machine_ends_the_same_on_another(tmp_path, monkeypatch):
    """The first machine's disk is lost after SIGKILL; the curve and the weights are not."""
    prepare_sft(MICRO, SMALL, tmp_path)
    finish(start_stage(MICRO, tmp_path, tmp_path / "whole", SMALL), tmp_path / "whole")
    monkeypatch.setenv(STORE_VARIABLE, str(tmp_path / "store"))
    lost = tmp_path / "lost"
    process = start_stage(MICRO, tmp_path, lost, SMALL)
    kill_at(process, lost, step=8)
    wait_until_gone(process)
    shutil.rmtree(lost)
    assert len(ObjectStore(str(tmp_path / "store"), "reader").names()) in (1, 2)

    other = tmp_path / "other"
    output = finish(start_stage(MICRO, tmp_path, other, SMALL), other)
    assert "going on from the copy in-progress/" in output and "sft goes on after step" in output
    assert metrics(other) == metrics(tmp_path / "whole")
    assert checkpoint_bytes(other) == checkpoint_bytes(tmp_path / "whole")
    assert ObjectStore(str(tmp_path / "store"), "reader").names() == []
