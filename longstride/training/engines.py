"""Which engine a recipe asks for, and whole models out of any of them."""

from __future__ import annotations

import torch
from torch import Tensor

from longstride.model.hybrid import HybridModel
from longstride.training.engine import Engine, TorchEngine
from longstride.training.ranks import Ranks
from longstride.training.sharded import ShardedEngine
from schemas.engine import EngineConfig
from schemas.stages import OptimizerConfig


def create_engine(
    model: HybridModel, optimizer: OptimizerConfig, config: EngineConfig, ranks: Ranks
) -> Engine:
    """The engine that a recipe asks for, around a fp32 model that it takes over."""
    if config.kind == "torch":
        return TorchEngine(model, optimizer, config)
    return ShardedEngine(model, optimizer, config, ranks)


def whole_model(engine: Engine) -> HybridModel:
    """A plain fp32 model with the engine's weights, to publish. Collective.

    It is whole on the first rank; on others only its configuration means anything.
    """
    if engine.config.kind == "torch":
        return engine.model
    target = HybridModel(engine.model.config)
    places = dict(target.named_parameters())
    with torch.no_grad():
        for name, value in engine.weights():
            if engine.ranks.first:
                places[name].copy_(value)
    return target


def whole_optimizer_state(engine: Engine) -> dict[str, Tensor]:
    """The optimizer state by name, to publish; empty but on the first rank. Collective."""
    return {name: value for name, value in engine.optimizer_state() if engine.ranks.first}
