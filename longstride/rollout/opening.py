"""The generator that a recipe asks for, ready to sample from a model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from longstride.model.hybrid import HybridModel
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SyncedGenerator
from longstride.rollout.vllm import VllmGenerator
from longstride.rollout.vllm_server import ServerOptions
from schemas.generators import VllmGeneratorConfig
from schemas.recipe import Recipe

LOG = "vllm.log"


@contextmanager
def open_generator(recipe: Recipe, model: HybridModel, beside: Path) -> Iterator[SyncedGenerator]:
    """Yield the recipe's generator; whatever it has started ends with the context.

    Call its `sync` before sampling, and whenever the model has changed.

    Args:
        recipe: chooses the generator; its last extension window bounds prompt and answer together.
        model: the policy.
        beside: an output of the task; a server's log is written next to it.
    """
    rollout = recipe.rollout
    if not isinstance(rollout.generator, VllmGeneratorConfig):
        yield NativeGenerator(model, rollout.max_batch)
        return
    options = ServerOptions(
        max_model_len=recipe.extension[-1].window,
        max_batch=rollout.max_batch,
        seed=recipe.seed,
        on_cpu=model.embed.weight.device.type == "cpu",
    )
    with VllmGenerator(rollout.generator, options, beside.parent / LOG) as generator:
        yield generator
