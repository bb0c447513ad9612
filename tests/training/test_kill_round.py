"""SIGKILL anywhere in an RL round: it goes on and ends as if nothing had happened, bit for bit."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from stage_parts import wait_until_gone
from training_parts import tokenizer_directory

from longstride.data.tasks import problems
from longstride.recipe.loading import load_recipe
from longstride.store.artifacts import publish
from longstride.store.files import write_jsonl
from longstride.training.ladder import start_ladder
from longstride.training.language import initialise

ROOT = Path(__file__).parents[2]
SMALL = (
    "model.hidden_size=16", "model.block_types=[lightning, softmax]", "model.num_heads=2",
    "model.num_kv_heads=1", "model.head_dim=8", "model.rotary_dim=4", "model.num_experts=2",
    "model.experts_per_token=1", "model.expert_hidden_size=16", "rl.groups_per_batch=6",
    "rl.group_size=6", "rl.max_refills=2", "rl.batches_per_round=3", "rl.updates_per_batch=16",
    "ladder.rungs=[24, 32]", "rewards.overlong_share=0.9", "rl.learning_rate=1.0e-3",
)  # fmt: skip
EVERY = 3
PLACES = {
    "in a wave that refills the first batch": "wave:2",
    "in round 7 of 16 of the first batch": "update:7",
    "in the first round of the second batch": "update:17",
    "in round 7 of 16 of the second batch": "update:23",
    "in the first wave of the third batch": "wave:5",
    "in round 16 of 16 of the last batch": "update:48",
    "after the last update": "publish",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("rounds")
    recipe = load_recipe("tiny", list(SMALL), [ROOT / "pipelines" / "recipes"])
    initialise(recipe, place / "start")
    start_ladder(recipe, place / "ladder")
    shutil.copytree(tokenizer_directory(), place / "tokenizer")
    write_jsonl(
        place / "prompts" / "prompts.jsonl", problems(recipe.tasks[0], 0, 12, seed=1, split="rl")
    )
    publish(place / "prompts", "prompts", "rl-prompts")
    run(place, place / "whole", "nowhere")
    return place


def start(folder, out, place, *overrides):
    """Start the round as the leader of a session of its own."""
    environment = {
        **os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1",
        "LONGSTRIDE_RESUME_DIR": str(out / "in-progress"),
    }  # fmt: skip
    every = f"engine.checkpoint_every_steps={EVERY}"
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("round_program.py")), str(folder), str(out),
         place, *SMALL, every, *overrides],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip


def run(folder, out, place, *overrides, code=0):
    """Run the round; returns what it printed."""
    with start(folder, out, place, *overrides) as process:
        output, _ = process.communicate(timeout=300)
    assert process.returncode == code, output
    return output


def wait_for_update(process, out, number):
    """Wait until the round has logged its `number`-th update."""
    path, limit = out / "metrics" / "metrics.jsonl", time.monotonic() + 240
    while not path.exists() or path.read_text().count("rl/off_policy_round") < number:
        assert process.poll() is None, process.stdout.read()
        assert time.monotonic() < limit, "the update never came"
        time.sleep(0.005)


def metrics(out):
    """Everything but times."""
    lines = (out / "metrics" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(r["step"], r["name"], r["value"]) for r in rows if "seconds" not in r["name"]]


def produced(out):
    """Bytes of every output of the round, but for the manifests, which hold times."""
    files = [*(out / "checkpoint").iterdir(), *(out / "rollouts").iterdir()]
    times = {"checkpoint.json", "artifact.json"}
    return {f"{f.parent.name}/{f.name}": f.read_bytes() for f in files if f.name not in times}


def test_the_uninterrupted_round_takes_updates_in_every_batch(folder):
    rounds = [value for _, name, value in metrics(folder / "whole")
              if name == "rl/off_policy_round"]  # fmt: skip
    assert rounds == [*range(1, 17)] * 3
    assert not (folder / "whole" / "in-progress").exists()
    assert {"checkpoint/model.safetensors", "checkpoint/optimizer.safetensors",
            "checkpoint/pass_history.json", "rollouts/rollouts.jsonl",
            "rollouts/audit.jsonl"} <= produced(folder / "whole").keys()  # fmt: skip


@pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)
def test_a_round_killed_there_ends_the_same_to_the_last_bit(place, folder, tmp_path):
    run(folder, tmp_path, place, code=-signal.SIGKILL)
    assert not (tmp_path / "rollouts").exists()
    run(folder, tmp_path, "nowhere")
    assert metrics(tmp_path) == metrics(folder / "whole")
    assert produced(tmp_path) == produced(folder / "whole")
    assert not (tmp_path / "in-progress").exists()


def test_a_round_killed_twice_goes_on_both_times(folder, tmp_path):
    run(folder, tmp_path, "update:7", code=-signal.SIGKILL)
    assert "goes on in batch 0 after 6 of its updates" in run(
        folder, tmp_path, "update:10", code=-signal.SIGKILL
    )
    assert "goes on in batch 0 after 15 of its updates" in run(folder, tmp_path, "nowhere")
    assert produced(tmp_path) == produced(folder / "whole")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_two_ranks_of_zero_3_killed_in_round_7_go_on_and_end_the_same(folder, tmp_path):
    sharded = ("engine.kind=deepspeed", "engine.ranks=2", "engine.zero_stage=3",
               "engine.persistent_elements=0", "engine.microbatch_tokens=128",
               *(f"extension.{n}.rows_per_step=8" for n in range(4)))  # fmt: skip
    run(folder, tmp_path / "whole", "nowhere", *sharded)
    killed = tmp_path / "killed"
    with start(folder, killed, "nowhere", *sharded) as process:
        wait_for_update(process, killed, 7)
        process.kill()
    wait_until_gone(process)
    (left,) = (killed / "in-progress").glob("step-*")
    assert left.name == "step-000000006"
    output = run(folder, killed, "nowhere", *sharded)
    assert "goes on in batch 0 after 6 of its updates" in output, output
    assert metrics(killed) == metrics(tmp_path / "whole")
    assert produced(killed) == produced(tmp_path / "whole")


def test_samples_of_a_killed_round_are_not_drawn_again(folder, tmp_path):
    run(folder, tmp_path, "update:7", code=-signal.SIGKILL)
    (batch,) = (tmp_path / "in-progress" / "batches").iterdir()
    assert batch.name == "batch-00000.collected.json"
    changed = json.loads(batch.read_text())
    changed["batch"]["kept"][0]["text"] = "read from the file"
    batch.write_text(json.dumps(changed))
    run(folder, tmp_path, "nowhere")
    assert "read from the file" in (tmp_path / "rollouts" / "rollouts.jsonl").read_text()


def test_the_in_progress_state_of_another_recipe_is_not_used(folder, tmp_path):
    run(folder, tmp_path, "update:7", code=-signal.SIGKILL)
    output = run(folder, tmp_path, "nowhere", "rl.learning_rate=2.0e-3")
    assert "made with another recipe" in output
    assert produced(tmp_path) != produced(folder / "whole")


def test_a_round_whose_batches_are_gone_starts_over(folder, tmp_path):
    run(folder, tmp_path, "update:7", code=-signal.SIGKILL)
    shutil.rmtree(tmp_path / "in-progress" / "batches")
    assert "starts over" in run(folder, tmp_path, "nowhere")
    assert produced(tmp_path) == produced(folder / "whole")
