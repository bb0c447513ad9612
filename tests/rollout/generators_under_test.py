"""Generators for tests: vLLM's over the double of its server, or over a real one."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fake_vllm import FakeVllm

from longstride.model.hybrid import HybridModel
from longstride.rollout.protocol import SyncedGenerator
from longstride.rollout.vllm import VllmGenerator
from longstride.rollout.vllm_server import ServerOptions
from schemas.generators import VllmGeneratorConfig

LONGEST = 384


@dataclass
class Subject:
    """A generator and the model that it samples from."""

    generator: SyncedGenerator
    model: HybridModel


def vllm_generator(log: Path, max_batch: int = 64, **choices: object) -> VllmGenerator:
    """A generator with short sequences; `choices` go to the recipe's `rollout.generator`."""
    options = ServerOptions(max_model_len=LONGEST, max_batch=max_batch, seed=0, on_cpu=True)
    return VllmGenerator(VllmGeneratorConfig.model_validate(choices), options, log)


def on_double(fake: FakeVllm, folder: Path, **choices: object) -> VllmGenerator:
    """A generator whose server is the double."""
    shared = folder / "weights"
    return vllm_generator(
        folder / "vllm.log", url=fake.url, weights_directory=str(shared), **choices
    )
