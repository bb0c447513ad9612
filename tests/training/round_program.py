"""A round as a process of its own that can kill itself with SIGKILL at an exact place.

`python round_program.py FOLDER OUT PLACE OVERRIDE...`; PLACE is `nowhere`, `wave:N` (in the N-th
call of the generator), `update:N` (in the N-th optimizer step, gradients computed, nothing applied)
or `publish` (all updates taken, nothing published).
"""

import os
import signal
import sys
from pathlib import Path

from longstride.recipe.loading import load_recipe
from longstride.rollout.native import NativeGenerator
from longstride.training import policy
from longstride.training.engine import TorchEngine

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


def die_at_call(owner, name, number):
    """Make the `number`-th call of a method the last thing that this process does."""
    inner, calls = getattr(owner, name), 0

    def counted(*args, **kwargs):
        nonlocal calls
        calls += 1
        if calls == number:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*args, **kwargs)

    setattr(owner, name, counted)


def main(folder, out, place, *overrides):
    kind, _, number = place.partition(":")
    if kind == "wave":
        die_at_call(NativeGenerator, "generate", int(number))
    if kind == "update":
        die_at_call(TorchEngine, "step", int(number))
    if kind == "publish":
        die_at_call(policy, "_publish_checkpoint", 1)
    paths = policy.RoundPaths(
        prompts=folder / "prompts", tokenizer=folder / "tokenizer", checkpoint=folder / "start",
        ladder=folder / "ladder", out_checkpoint=out / "checkpoint",
        out_rollouts=out / "rollouts", metrics=out / "metrics",
    )  # fmt: skip
    policy.run_round(load_recipe("tiny", list(overrides), [RECIPES]), 1, paths)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
