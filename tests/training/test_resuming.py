"""In-progress checkpoints: whose they are, what damages them, and what is left in the end."""

import json
from pathlib import Path

import pytest
import torch
from training_parts import MODEL, write_packed

from longstride.model.hybrid import HybridModel
from longstride.training import resuming
from longstride.training.engine import TorchEngine
from longstride.training.loop import Loop, Place, Plan
from longstride.training.packed import RowCursor, open_packed
from longstride.training.schedules import cosine
from schemas.engine import TorchEngine as TorchConfig
from schemas.stages import OptimizerConfig

KEY = {"stage": "sft", "recipe": "r", "code": "c"}
PLAN = Plan(4, 12, cosine(1e-2, 1e-3, 12, 2), OptimizerConfig())


class Killed(Exception):
    """Stands for the end of the process."""


@pytest.fixture
def rows(tmp_path):
    return open_packed(write_packed(tmp_path / "packed"), 64)


def loop(rows, place, every=4, found=None, killed_at=None):
    model = HybridModel(MODEL)
    model.initialise(1)
    if found is not None:
        model.load_state_dict(found.weights())
    place.metrics.mkdir(exist_ok=True)
    path = place.metrics / "metrics.jsonl"
    path.write_bytes(found.metrics() if found else b"")

    def log(step, values):
        if step == killed_at:
            raise Killed
        with path.open("a") as stream:
            stream.write(json.dumps([step, values["train/loss"], values["train/grad_norm"]]) + "\n")

    engine = TorchEngine(model, PLAN.optimizer, TorchConfig(checkpoint_every_steps=every))
    made = Loop(engine, rows, PLAN, RowCursor(rows.rows, 4, seed=5), log, place)
    if found is not None:
        made.restore(found)
    return made


def place_in(folder, **key):
    return Place(folder / "in-progress", KEY | key, folder / "metrics")


def killed_run(rows, place, at=10):
    with pytest.raises(Killed):
        loop(rows, place, killed_at=at).run()


def state(made):
    return dict(made.engine.weights()) | dict(made.engine.optimizer_state())


@pytest.mark.parametrize("at", [5, 8, 11])
def test_a_loop_that_died_goes_on_to_the_same_end_bit_for_bit(rows, tmp_path, at):
    (tmp_path / "whole").mkdir()
    (tmp_path / "cut").mkdir()
    whole = loop(rows, place_in(tmp_path / "whole"))
    loss = whole.run()
    cut = place_in(tmp_path / "cut")
    killed_run(rows, cut, at)
    found = resuming.find(cut.directory, cut.key)
    assert found.position.step == 4 * (at // 4)
    torch.manual_seed(99)
    resumed = loop(rows, cut, found=found)
    assert resumed.run() == loss
    ours, theirs = state(resumed), state(whole)
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    written, expected = (f / "metrics" / "metrics.jsonl" for f in (cut.metrics.parent,
                                                                   tmp_path / "whole"))  # fmt: skip
    assert written.read_text() == expected.read_text()


def test_only_the_newest_checkpoint_is_kept(rows, tmp_path):
    killed_run(rows, place_in(tmp_path), at=10)
    assert [p.name for p in (tmp_path / "in-progress").iterdir()] == ["step-000000008"]


@pytest.mark.parametrize("part", KEY)
def test_a_checkpoint_of_another_task_is_discarded_with_a_sentence(rows, tmp_path, part, capsys):
    killed_run(rows, place_in(tmp_path))
    assert resuming.find(tmp_path / "in-progress", KEY | {part: "other"}) is None
    said = capsys.readouterr().out
    assert f"discarding the in-progress checkpoint step-000000008: it was made with another {part}"
    assert f"another {part}" in said
    assert not list((tmp_path / "in-progress").glob("step-*"))


@pytest.mark.parametrize("name", ["weights-00000.safetensors", "optimizer-00000.safetensors",
                                  "cursor.safetensors", "metrics.jsonl"])  # fmt: skip
def test_a_damaged_checkpoint_is_discarded_with_a_sentence(rows, tmp_path, name, capsys):
    killed_run(rows, place_in(tmp_path))
    path = tmp_path / "in-progress" / "step-000000008" / name
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))
    assert resuming.find(tmp_path / "in-progress", KEY) is None
    assert f"discarding the in-progress checkpoint step-000000008: {name} is damaged" in (
        capsys.readouterr().out
    )


def test_without_its_manifest_a_checkpoint_does_not_exist(rows, tmp_path, capsys):
    killed_run(rows, place_in(tmp_path))
    (tmp_path / "in-progress" / "step-000000008" / resuming.MANIFEST).unlink()
    assert resuming.find(tmp_path / "in-progress", KEY) is None
    assert "discarding" in capsys.readouterr().out


def test_a_write_that_was_cut_off_is_not_looked_at_and_is_written_over(rows, tmp_path):
    partial = tmp_path / "in-progress" / ".partial"
    partial.mkdir(parents=True)
    (partial / "weights-00000.safetensors").write_bytes(b"half")
    assert resuming.find(tmp_path / "in-progress", KEY) is None
    killed_run(rows, place_in(tmp_path))
    assert resuming.find(tmp_path / "in-progress", KEY).position.step == 8
    assert not partial.exists()


def test_no_checkpoints_are_kept_when_the_recipe_says_so(rows, tmp_path):
    with pytest.raises(Killed):
        loop(rows, place_in(tmp_path), every=0, killed_at=10).run()
    assert not (tmp_path / "in-progress").exists()


def test_skipped_steps_are_remembered(rows, tmp_path):
    place = place_in(tmp_path)
    made = loop(rows, place)
    made.engine.guard.skipped, made.engine.guard.in_a_row = 7, 2
    made.position.step = 4
    (place.metrics / "metrics.jsonl").write_text("")
    made.save()
    again = loop(rows, place, found=resuming.find(place.directory, KEY))
    assert (again.engine.skipped_steps, again.engine.guard.in_a_row) == (7, 2)


def test_large_states_are_written_in_shards(rows, tmp_path, monkeypatch):
    monkeypatch.setattr(resuming, "SHARD_BYTES", 4096)
    killed_run(rows, place_in(tmp_path))
    found = resuming.find(tmp_path / "in-progress", KEY)
    shards = list(found.directory.glob("weights-*.safetensors"))
    assert len(shards) > 2
    assert found.weights().keys() == dict(HybridModel(MODEL).named_parameters()).keys()


def test_the_executor_says_where_the_attempts_of_a_task_share_a_folder(monkeypatch, tmp_path):
    assert resuming.resume_directory(Path("/a/out")) == Path("/a/.out.in-progress")
    monkeypatch.setenv(resuming.RESUME_VARIABLE, str(tmp_path))
    assert resuming.resume_directory(Path("/a/out")) == tmp_path
