"""The same weights under the names that transformers' `MiniMaxForCausalLM` uses.

Only names and row order change; transformers itself is not needed. Its class cannot rotate a part
of a head, so a model with `rotary_dim` below `head_dim` keeps its weights there but not its
meaning: `transformers_settings` refuses it.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from schemas.model import ModelConfig

_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
    "mlp.router.weight": "mlp.gate.weight",
    "mlp.w13": "mlp.experts.gate_up_proj",
    "mlp.w2": "mlp.experts.down_proj",
}
_LIGHTNING = {"norm.weight": "norm.weight", "out_proj.weight": "out_proj.weight"}
_SOFTMAX = {"out_proj.weight": "o_proj.weight"}


def transformers_settings(config: ModelConfig) -> dict[str, Any]:
    """Return the keyword arguments of transformers' `MiniMaxConfig` for this architecture.

    Raises:
        CheckpointError: the architecture has no equivalent there.
    """
    if "softmax" in config.block_types and config.rotary_dim != config.head_dim:
        raise CheckpointError(
            f"rotary_dim={config.rotary_dim} of head_dim={config.head_dim} cannot be expressed by "
            "transformers' MiniMax, which rotates whole heads; keep the native checkpoint format"
        )
    if config.num_experts == 1:
        raise CheckpointError(
            "num_experts=1 has no router, which transformers' MiniMax requires; keep the native "
            "checkpoint format"
        )
    alpha = (2.0 * config.num_layers) ** 0.25
    kinds = {"lightning": "linear_attention", "softmax": "full_attention"}
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.expert_hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
        "rms_norm_eps": config.norm_eps,
        "block_size": config.lightning_chunk,
        "layer_types": [kinds[kind] for kind in config.block_types],
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "router_aux_loss_coef": config.router_aux_loss_coef,
        "initializer_range": config.init_std,
        "tie_word_embeddings": False,
        **{f"{part}_attn_alpha_factor": alpha for part in ("full", "linear")},
        "mlp_alpha_factor": alpha,
    }


def to_transformers(model: HybridModel) -> dict[str, Tensor]:
    """Return the model's weights by transformers' names; tensors are views where possible."""
    return rename(model, dict(model.named_parameters()))


def rename(model: HybridModel, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Rename any tensors shaped like the parameters, for example their gradients."""
    out = {theirs: tensors[ours] for ours, theirs in _TOP.items()}
    for layer, kind in enumerate(model.config.block_types):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        for name, target in _BLOCK.items():
            if ours + name in tensors:
                out[theirs + target] = tensors[ours + name]
        ours, theirs = ours + "attention.", theirs + "self_attn."
        for name, target in (_LIGHTNING if kind == "lightning" else _SOFTMAX).items():
            out[theirs + target] = tensors[ours + name]
        if kind == "lightning":
            width = model.config.num_heads * model.config.head_dim
            qkv, gate = tensors[ours + "qkvg_proj.weight"].split((3 * width, width))  # type: ignore[no-untyped-call]
            out |= {theirs + "qkv_proj.weight": qkv, theirs + "output_gate.weight": gate}
        else:
            sizes = [n * model.config.head_dim for n in _head_counts(model.config)]
            parts = tensors[ours + "qkv_proj.weight"].split(sizes)  # type: ignore[no-untyped-call]
            out |= {theirs + f"{n}_proj.weight": p for n, p in zip("qkv", parts, strict=True)}
    return out


def from_transformers(config: ModelConfig, weights: dict[str, Tensor]) -> HybridModel:
    """Build a model from weights under transformers' names.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    model = HybridModel(config)
    with torch.no_grad():
        for name, view in to_transformers(model).items():
            if name not in weights:
                raise CheckpointError(f"the transformers checkpoint lacks tensor {name!r}")
            if weights[name].shape != view.shape:
                raise CheckpointError(
                    f"transformers tensor {name!r} is {list(weights[name].shape)} but the "
                    f"configuration asks for {list(view.shape)}; check the architecture"
                )
            view.copy_(weights[name])
    return model


def _head_counts(config: ModelConfig) -> tuple[int, int, int]:
    return config.num_heads, config.num_kv_heads, config.num_kv_heads
