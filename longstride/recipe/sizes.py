"""Sizes of a model and costs of training it, from its configuration alone."""

from __future__ import annotations

from schemas.model import ModelConfig


def parameter_counts(config: ModelConfig) -> tuple[int, int]:
    """Parameters in all, and active a token without embedding and head (as M1 counts 45.9B)."""
    hidden, width = config.hidden_size, config.num_heads * config.head_dim
    key_value = config.num_kv_heads * config.head_dim
    expert = 3 * hidden * config.expert_hidden_size
    router = config.num_experts * hidden if config.num_experts > 1 else 0
    total = active = hidden  # the final norm
    for block in config.block_types:
        if block == "lightning":
            attention = 5 * hidden * width + width
        else:
            attention = 2 * hidden * width + 2 * hidden * key_value
            attention += config.qkv_bias * (width + 2 * key_value)
            attention += config.qk_norm * 2 * config.head_dim
        shared = attention + router + 2 * hidden
        total += shared + config.num_experts * expert
        active += shared + min(config.experts_per_token, config.num_experts) * expert
    return total + 2 * config.vocab_size * hidden, active


def training_flops(config: ModelConfig, tokens: int, window: int) -> float:
    """Floating-point operations of training on `tokens` tokens in rows of `window`.

    Rule: 6 operations an active parameter and token (head included), plus attention: 6 window x
    width a token in softmax layers (causal, forward and backward), and 12 width x head_dim in
    lightning layers (the state update and its readout).
    """
    _, active = parameter_counts(config)
    width = config.num_heads * config.head_dim
    dense = 6 * (active + config.vocab_size * config.hidden_size)
    softmax = config.block_types.count("softmax") * 6 * window * width
    lightning = config.block_types.count("lightning") * 12 * width * config.head_dim
    return float(tokens) * (dense + softmax + lightning)
