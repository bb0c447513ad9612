"""Our weights under the names of Hugging Face layouts; only names and row order change.

MiniMax checkpoints exist in two spellings: transformers holds all experts of a layer in one tensor
(`fused`), files on disk hold one tensor an expert (`split`). Dense models have neither.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import torch
from torch import Tensor

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from schemas.model import ModelConfig

Experts = Literal["fused", "split"]

_TOP = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
_BLOCK = {
    "attention_norm.weight": "input_layernorm.weight",
    "mlp_norm.weight": "post_attention_layernorm.weight",
}
_LIGHTNING = {"norm.weight": "norm.weight", "out_proj.weight": "out_proj.weight"}
_SOFTMAX = {
    "out_proj.weight": "o_proj.weight",
    "q_norm.weight": "q_norm.weight",
    "k_norm.weight": "k_norm.weight",
}


def to_transformers(model: HybridModel, experts: Experts = "fused") -> dict[str, Tensor]:
    """Return the model's weights by transformers' names; every tensor is a view of ours."""
    return rename(model.config, dict(model.named_parameters()), experts)


def rename(
    config: ModelConfig, tensors: Mapping[str, Tensor], experts: Experts = "fused"
) -> dict[str, Tensor]:
    """Rename any tensors shaped like the parameters, for example their gradients, as views."""
    out = {theirs: tensors[ours] for ours, theirs in _TOP.items()}
    for layer, kind in enumerate(config.block_types):
        ours, theirs = f"blocks.{layer}.", f"model.layers.{layer}."
        out |= {theirs + target: tensors[ours + name] for name, target in _BLOCK.items()}
        out |= _mlp(config, tensors, ours + "mlp.", theirs, experts)
        if kind == "lightning":
            out |= _lightning(config, tensors, ours + "attention.", theirs + "self_attn.")
        else:
            out |= _softmax(config, tensors, ours + "attention.", theirs + "self_attn.")
    return out


def _mlp(
    config: ModelConfig, tensors: Mapping[str, Tensor], ours: str, theirs: str, experts: Experts
) -> dict[str, Tensor]:
    w13, w2 = tensors[ours + "w13"], tensors[ours + "w2"]
    if config.num_experts == 1:
        gate, up = w13[0].chunk(2)
        return {
            theirs + "mlp.gate_proj.weight": gate,
            theirs + "mlp.up_proj.weight": up,
            theirs + "mlp.down_proj.weight": w2[0],
        }
    router = tensors[ours + "router.weight"]
    if experts == "fused":
        return {
            theirs + "mlp.gate.weight": router,
            theirs + "mlp.experts.gate_up_proj": w13,
            theirs + "mlp.experts.down_proj": w2,
        }
    out = {theirs + "block_sparse_moe.gate.weight": router}
    for expert in range(config.num_experts):
        gate, up = w13[expert].chunk(2)
        prefix = theirs + f"block_sparse_moe.experts.{expert}."
        out |= {
            prefix + "w1.weight": gate,
            prefix + "w3.weight": up,
            prefix + "w2.weight": w2[expert],
        }
    return out


def _lightning(
    config: ModelConfig, tensors: Mapping[str, Tensor], ours: str, theirs: str
) -> dict[str, Tensor]:
    width = config.num_heads * config.head_dim
    qkv, gate = tensors[ours + "qkvg_proj.weight"].split((3 * width, width))  # type: ignore[no-untyped-call]
    out = {theirs + target: tensors[ours + name] for name, target in _LIGHTNING.items()}
    return out | {theirs + "qkv_proj.weight": qkv, theirs + "output_gate.weight": gate}


def _softmax(
    config: ModelConfig, tensors: Mapping[str, Tensor], ours: str, theirs: str
) -> dict[str, Tensor]:
    out = {
        theirs + target: tensors[ours + name]
        for name, target in _SOFTMAX.items()
        if ours + name in tensors
    }
    sizes = [heads * config.head_dim for heads in _head_counts(config)]
    for part in ("weight", "bias") if config.qkv_bias else ("weight",):
        split = tensors[f"{ours}qkv_proj.{part}"].split(sizes)  # type: ignore[no-untyped-call]
        out |= {theirs + f"{n}_proj.{part}": t for n, t in zip("qkv", split, strict=True)}
    return out


def from_transformers(config: ModelConfig, weights: Mapping[str, Tensor]) -> HybridModel:
    """Build a model from weights under transformers' names.

    Raises:
        CheckpointError: a tensor is missing or has another shape.
    """
    model = HybridModel(config)
    for name, view in to_transformers(model).items():
        if name not in weights:
            raise CheckpointError(f"the transformers checkpoint lacks tensor {name!r}")
        fill(view, weights[name], name)
    return model


@torch.no_grad()
def fill(view: Tensor, values: Tensor, name: str) -> None:
    """Copy a tensor of a Hugging Face checkpoint into its place in a model.

    Raises:
        CheckpointError: the shapes differ, or a value is NaN or infinite.
    """
    if values.shape != view.shape:
        raise CheckpointError(
            f"tensor {name!r} of the Hugging Face checkpoint is {list(values.shape)} but its "
            f"configuration asks for {list(view.shape)}; the files do not belong together"
        )
    if not bool(torch.isfinite(values).all()):
        raise CheckpointError(
            f"tensor {name!r} of the Hugging Face checkpoint holds NaN or infinite values; restore "
            "it from its source"
        )
    view.copy_(values)


def _head_counts(config: ModelConfig) -> tuple[int, int, int]:
    return config.num_heads, config.num_kv_heads, config.num_kv_heads
