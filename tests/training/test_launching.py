"""Rank processes: errors surface, all die together, and nobody waits for ever."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rank_processes import free_port
from stage_parts import members_of, wait_until_gone
from training_parts import write_packed

from longstride.errors import CheckpointError, EngineError, UsageError
from longstride.recipe.loading import load_recipe
from longstride.store.files import read_json, write_json
from longstride.training import launch
from longstride.training.language import initialise, train_stage
from longstride.training.launching import LanguageRequest, RequestFile, ResultFile, result_path

ROOT = Path(__file__).parents[2]
SMALL = (
    "model.hidden_size=16", "model.block_types=[lightning, softmax]", "model.num_heads=2",
    "model.num_kv_heads=1", "model.head_dim=8", "model.rotary_dim=4", "model.num_experts=2",
    "model.experts_per_token=1", "model.expert_hidden_size=16", "pretrain.window=16",
    "pretrain.rows_per_step=8", "pretrain.tokens=100000", "pretrain.learning_rate=0.01",
)  # fmt: skip
RANKS = ("engine.kind=deepspeed", "engine.ranks=2", "engine.microbatch_tokens=32")


@pytest.fixture
def request_file(tmp_path):
    """A stage of many steps as a request."""
    recipe = load_recipe("tiny", [*SMALL, *RANKS], [ROOT / "pipelines" / "recipes"])
    initialise(recipe, tmp_path / "start")
    request = LanguageRequest(
        recipe=recipe, stage="pretrain", packed=write_packed(tmp_path / "packed"),
        parent=tmp_path / "start", out=tmp_path / "out", metrics=tmp_path / "metrics",
    )  # fmt: skip
    write_json(tmp_path / "request.json", RequestFile(request=request))
    return tmp_path / "request.json"


def start(request_file):
    return subprocess.Popen(
        [sys.executable, "-m", "longstride.training.launch", str(request_file)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        start_new_session=True,
    )


def rank_processes(launcher, request_file):
    """Process ids by rank, once the first step is logged."""
    rows = request_file.parent / "metrics" / "metrics.jsonl"
    limit = time.monotonic() + 300
    while not (rows.exists() and "train/loss" in rows.read_text()):
        assert launcher.poll() is None, launcher.communicate()[0]
        assert time.monotonic() < limit
        time.sleep(0.05)
    found = {}
    for pid in members_of(launcher):
        variables = (Path("/proc") / str(pid) / "environ").read_bytes().split(b"\0")
        for variable in variables:
            if variable.startswith(b"RANK="):
                found[int(variable[5:])] = pid
    assert sorted(found) == [0, 1]
    return found


def test_when_one_rank_is_killed_the_others_die_and_the_message_names_it(request_file):
    launcher = start(request_file)
    os.kill(rank_processes(launcher, request_file)[1], signal.SIGKILL)
    output = launcher.communicate(timeout=60)[0]
    assert launcher.returncode != 0
    assert "EngineError: rank 1 of 2 was killed by SIGKILL" in output
    wait_until_gone(launcher, seconds=5)


def test_when_the_launcher_is_killed_no_rank_outlives_it(request_file):
    launcher = start(request_file)
    rank_processes(launcher, request_file)
    launcher.kill()
    wait_until_gone(launcher, seconds=10)
    launcher.communicate()


def test_an_error_in_a_rank_is_the_error_of_the_stage(request_file, capfd):
    request = read_json(request_file, RequestFile).request
    weights = request.parent / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors has \d+ bytes.*truncated"):
        train_stage(
            request.recipe, request.stage, request.packed, request.parent, request.out,
            request.metrics,
        )  # fmt: skip
    assert "[rank 1] " in capfd.readouterr().out


def environment(monkeypatch, rank, count, port):
    for name, value in {
        "RANK": rank, "WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port,
    }.items():  # fmt: skip
        monkeypatch.setenv(name, str(value))


def test_a_rank_that_waits_in_vain_says_for_whom(monkeypatch):
    environment(monkeypatch, rank=0, count=3, port=free_port())
    with pytest.raises(EngineError, match=r"rank 0 waited 1 s .* for rank\(s\) 1, 2 of 3"):
        launch.join(seconds=1)


def test_a_rank_that_cannot_reach_the_rendezvous_says_where(monkeypatch):
    port = free_port()
    environment(monkeypatch, rank=1, count=2, port=port)
    with pytest.raises(EngineError, match=rf"did not reach .* 127\.0\.0\.1:{port} within 1 s"):
        launch.join(seconds=1)


def test_a_recipe_without_ranks_is_not_launched(request_file):
    request = read_json(request_file, RequestFile).request
    torch_engine = load_recipe("tiny", SMALL, [ROOT / "pipelines" / "recipes"])
    request.recipe = torch_engine
    write_json(request_file, RequestFile(request=request))
    with pytest.raises(UsageError, match=r"engine\.kind='torch' has no ranks"):
        launch.main([str(request_file)])


@pytest.mark.slow
def test_ranks_can_be_started_by_torchrun(request_file, tmp_path):
    request = read_json(request_file, RequestFile).request
    values = request.recipe.model_dump(mode="json")
    values["pretrain"]["tokens"] = 4 * 8 * 16
    request.recipe = type(request.recipe).model_validate(values)
    write_json(request_file, RequestFile(request=request))
    subprocess.run(
        [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2",
         f"--master-port={free_port()}", "-m", "longstride.training.launch", str(request_file)],
        check=True, env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert (tmp_path / "out" / "checkpoint.json").is_file()
    assert "loss" in read_json(result_path(request_file), ResultFile).values
