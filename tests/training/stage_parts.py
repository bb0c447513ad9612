"""A language stage as a process of its own, on real SFT rows: to run, to kill, to compare."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from safetensors.torch import load_file

from longstride.data.corpus import build_corpus
from longstride.data.sft import build_chat_examples
from longstride.data.stage_rows import pack_examples
from longstride.data.tokenizer_training import train_on_corpus
from longstride.recipe.loading import load_recipe
from longstride.training.language import initialise

ROOT = Path(__file__).parents[2]
RECIPES = ROOT / "pipelines" / "recipes"
SHARDED = ("engine.kind=deepspeed", "engine.ranks=2", "engine.zero_stage=3",
           "engine.persistent_elements=0")  # fmt: skip
TORCH = ("engine.kind=torch",)
PROGRAM = """
import sys
from pathlib import Path
from longstride.recipe.loading import load_recipe
from longstride.training.language import train_stage
name, stage, folder, out, *overrides = sys.argv[1:]
recipe = load_recipe(name, overrides, [Path(sys.argv[0]).parent])
folder, out = Path(folder), Path(out)
train_stage(recipe, stage, folder / "packed", folder / "start", out / "checkpoint", out / "metrics")
"""


def prepare_sft(name, overrides, folder):
    """Corpus, tokenizer, conversations and rows by the pipeline's own builders."""
    recipe = load_recipe(name, overrides, [RECIPES])
    build_corpus(recipe, folder / "corpus")
    train_on_corpus(recipe, folder / "corpus", folder / "tokenizer")
    build_chat_examples(recipe, folder / "examples")
    pack_examples(recipe, folder / "examples", folder / "tokenizer", folder / "packed")
    initialise(recipe, folder / "start")
    return recipe


def start_stage(name, folder, out, overrides):
    """Start SFT as a process; its in-progress checkpoints lie in `out/in-progress`."""
    out.mkdir(parents=True, exist_ok=True)
    code = f"import sys; sys.argv[0] = {str(RECIPES / 'none')!r}\n{PROGRAM}"
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "LONGSTRIDE_RESUME_DIR": str(out / "in-progress"),
    }
    with (out / "output.txt").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-c", code, str(name), "sft", str(folder), str(out), *overrides],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )


def finish(process, out, seconds=900):
    """Wait for the end; returns what it printed."""
    code = process.wait(timeout=seconds)
    output = (out / "output.txt").read_text()
    assert code == 0, output
    return output


def steps_logged(out):
    path = out / "metrics" / "metrics.jsonl"
    return path.read_text().count("train/loss") if path.exists() else 0


def kill_at(process, out, step):
    """SIGKILL the process, and it alone, once it has logged `step` steps."""
    limit = time.monotonic() + 600
    while steps_logged(out) < step:
        assert process.poll() is None, (out / "output.txt").read_text()
        assert time.monotonic() < limit, "the step never came"
        time.sleep(0.005)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()


def members_of(process):
    """Live processes of the session that the process leads or led."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == process.pid and fields[0] != "Z":
            found.append(int(entry.name))
    return found


def wait_until_gone(process, seconds=20):
    limit = time.monotonic() + seconds
    while left := members_of(process):
        assert time.monotonic() < limit, f"processes {left} outlived their launcher"
        time.sleep(0.05)


def metrics(out):
    """Rows of metrics.jsonl without the wall clock."""
    lines = (out / "metrics" / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    return [(row["step"], row["name"], row["value"]) for row in rows]


def losses(out):
    return [value for _, name, value in metrics(out) if name in ("train/loss", "validation/loss")]


def weights(out):
    return load_file(out / "checkpoint" / "model.safetensors")


def checkpoint_bytes(out):
    """Everything that was published, byte for byte; the manifest holds no times."""
    return {p.name: p.read_bytes() for p in sorted((out / "checkpoint").iterdir())}
