"""The policy's architecture and its tokenizer, as data: hybrid, or dense as llama and qwen are."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.base import Contract

BlockType = Literal["lightning", "softmax"]
Residual = Literal["deepnorm", "prenorm"]


def seven_to_one(layers: int) -> list[BlockType]:
    """M1's layout: every eighth layer is softmax attention, the others are lightning attention."""
    return ["softmax" if (index + 1) % 8 == 0 else "lightning" for index in range(layers)]


class ModelConfig(Contract):
    """Architecture: the hybrid of MiniMax-Text-01 and M1 by default.

    All softmax layers, one expert and `residual: prenorm` make it a llama; `qkv_bias` then makes it
    a qwen2, `qk_norm` a qwen3.
    """

    vocab_size: int = Field(default=512, ge=16)
    """Rows of the embedding and of the head; must hold every token of the tokenizer."""
    hidden_size: int = Field(default=128, ge=8)
    """Width of the residual stream."""
    block_types: list[BlockType] = Field(default_factory=lambda: seven_to_one(8), min_length=1)
    """One entry a layer; M1 repeats seven lightning layers and one softmax layer."""
    num_heads: int = Field(default=4, ge=1)
    """Attention heads of every layer; num_heads x head_dim may differ from hidden_size."""
    num_kv_heads: int = Field(default=2, ge=1)
    """Key/value heads of softmax layers (grouped-query attention)."""
    head_dim: int = Field(default=32, ge=2)
    """Width of one attention head."""
    rotary_dim: int = Field(default=16, ge=0)
    """Leading dimensions of a softmax head that RoPE rotates; M1 rotates 64 of 128."""
    rope_base: float = Field(default=10_000.0, gt=1.0)
    """RoPE base (theta) of softmax layers; each context-extension stage sets its own."""
    num_experts: int = Field(default=4, ge=1)
    """Experts of the mixture in every layer; 1 makes the MLP dense."""
    experts_per_token: int = Field(default=2, ge=1)
    """Experts that each token is routed to; their softmax weights are renormalised."""
    expert_hidden_size: int = Field(default=128, ge=4)
    """SwiGLU width of one expert."""
    router_aux_loss_coef: float = Field(default=0.001, ge=0.0)
    """Weight of the load-balancing loss; the trainer multiplies and adds it to its loss."""
    norm_eps: float = Field(default=1e-5, gt=0.0)
    """Epsilon of the RMSNorms of the residual stream."""
    lightning_norm_eps: float = Field(default=1e-6, gt=0.0)
    """Epsilon of the RMSNorm inside a lightning layer, over all heads together."""
    lightning_chunk: int = Field(default=64, ge=1)
    """Tokens per block of the chunked lightning attention; changes speed, never results."""
    residual: Residual = "deepnorm"
    """`deepnorm`: the residual is the normed input times (2 layers)^(1/4), as in M1; `prenorm`: the
    residual is the input itself, as in llama and qwen."""
    qkv_bias: bool = False
    """Whether the query, key and value projections of softmax layers have a bias (qwen2)."""
    qk_norm: bool = False
    """Whether softmax layers norm every query and key head before its rotation (qwen3)."""
    init_std: float = Field(default=0.02, gt=0.0)
    """Standard deviation of the initial weights before the DeepNorm gain."""

    @property
    def num_layers(self) -> int:
        """Number of layers, the length of `block_types`."""
        return len(self.block_types)

    @model_validator(mode="after")
    def _shapes_fit(self) -> Self:
        if self.num_heads % self.num_kv_heads:
            raise ValueError(
                f"num_heads={self.num_heads} is not a multiple of num_kv_heads="
                f"{self.num_kv_heads}; choose num_kv_heads among its divisors"
            )
        if self.rotary_dim > self.head_dim or self.rotary_dim % 2:
            raise ValueError(
                f"rotary_dim={self.rotary_dim} must be even and at most head_dim={self.head_dim}"
            )
        if self.experts_per_token > self.num_experts:
            raise ValueError(
                f"experts_per_token={self.experts_per_token} exceeds num_experts="
                f"{self.num_experts}; lower experts_per_token"
            )
        return self


class TokenizerConfig(Contract):
    """The byte-level BPE tokenizer that the pipeline trains on its own corpus."""

    vocab_size: int = Field(default=512, ge=300, le=1_000_000)
    """Entries including the 256 bytes and the special tokens."""
    split_digits: bool = True
    """Keep every digit a token of its own, so that numbers have one spelling."""
    training_characters: int = Field(default=2_000_000, ge=10_000)
    """Characters of corpus text that the merges are learnt from."""
