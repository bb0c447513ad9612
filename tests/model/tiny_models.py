from __future__ import annotations

import torch

from longstride.model.hybrid import HybridModel
from schemas.model import ModelConfig

SEVEN_TO_ONE = ["lightning"] * 7 + ["softmax"]


def small_config(**changes: object) -> ModelConfig:
    """A model small enough for exact comparisons; wide weights make every part matter."""
    fields: dict[str, object] = {
        "vocab_size": 40,
        "hidden_size": 24,
        "block_types": ["lightning", "softmax", "lightning"],
        "num_heads": 4,
        "num_kv_heads": 2,
        "head_dim": 8,
        "rotary_dim": 4,
        "num_experts": 4,
        "experts_per_token": 2,
        "expert_hidden_size": 16,
        "lightning_chunk": 8,
        "init_std": 0.25,
    }
    return ModelConfig.model_validate(fields | changes)


def small_model(seed: int = 0, **changes: object) -> HybridModel:
    model = HybridModel(small_config(**changes))
    model.initialise(seed)
    return model


def random_tokens(rows: int, tokens: int, vocab: int = 40, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, vocab, (rows, tokens), generator=generator)
