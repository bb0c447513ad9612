from __future__ import annotations

import pytest
import torch

from longstride.model.hybrid import HybridModel
from longstride.rollout.protocol import Sample, SamplingSettings
from schemas.model import ModelConfig

VOCAB = 24
PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8], [9, 10, 11], [12] * 17, [13, 14]]
TOLERANCE = 1e-4


def policy(seed: int = 0, blocks: tuple[str, ...] = ("lightning", "softmax")) -> HybridModel:
    """A small random model whose next-token distributions are far from uniform."""
    config = ModelConfig.model_validate(
        {
            "vocab_size": VOCAB,
            "hidden_size": 16,
            "block_types": list(blocks),
            "num_heads": 2,
            "num_kv_heads": 1,
            "head_dim": 8,
            "rotary_dim": 4,
            "expert_hidden_size": 8,
            "lightning_chunk": 4,
            "init_std": 0.4,
        }
    )
    model = HybridModel(config)
    model.initialise(seed)
    return model


def plain(max_new_tokens: int = 12, **changes: object) -> SamplingSettings:
    return SamplingSettings(max_new_tokens=max_new_tokens, **changes)  # type: ignore[arg-type]


def full_logits(model: HybridModel, prompt: list[int], tokens: list[int]) -> torch.Tensor:
    """The distribution before each sampled token, from one uncached forward pass."""
    with torch.no_grad():
        hidden = model(torch.tensor([prompt + tokens])).hidden_BTD
        return model.logits(hidden)[0, len(prompt) - 1 : -1]


def dense_policy(seed: int = 0, kind: str = "llama", vocab: int = VOCAB) -> HybridModel:
    """A small random llama, qwen2 or qwen3, with the smallest heads that vLLM has kernels for."""
    config = ModelConfig(
        vocab_size=vocab, hidden_size=32, block_types=["softmax", "softmax"], num_heads=2,
        num_kv_heads=1, head_dim=32, rotary_dim=32, num_experts=1, experts_per_token=1,
        expert_hidden_size=48, residual="prenorm", qkv_bias=kind == "qwen2",
        qk_norm=kind == "qwen3", init_std=0.25,
    )  # fmt: skip
    model = HybridModel(config)
    model.initialise(seed)
    return model


def near(first: list[list[Sample]], second: list[list[Sample]]) -> bool:
    """Equal tokens and reasons; log-probabilities equal but for rounding."""
    pairs = [pair for a, b in zip(first, second, strict=True) for pair in zip(a, b, strict=True)]
    return all(
        a.tokens == b.tokens
        and a.finish_reason == b.finish_reason
        and a.logprobs == pytest.approx(b.logprobs, abs=TOLERANCE)
        for a, b in pairs
    )
