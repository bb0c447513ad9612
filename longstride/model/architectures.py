"""`config.json` of Hugging Face checkpoints <-> `ModelConfig`: MiniMax hybrids, llama, qwen.

What our model would not compute exactly is refused, never approximated.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from longstride.errors import CheckpointError
from schemas.model import BlockType, ModelConfig

_MINIMAX = ("minimax", "minimax_text_01", "minimax_m1")
_DENSE = ("llama", "mistral", "qwen2", "qwen3")
_LAYERS: dict[Any, BlockType] = {
    "linear_attention": "lightning",
    "full_attention": "softmax",
    0: "lightning",
    1: "softmax",
}
_ALPHAS = (
    "full_attn_alpha_factor", "linear_attn_alpha_factor", "mlp_alpha_factor",
    "layernorm_full_attention_alpha", "layernorm_linear_attention_alpha", "layernorm_mlp_alpha",
)  # fmt: skip
_BETAS = tuple(name.replace("alpha", "beta") for name in _ALPHAS)
_CLASSES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "minimax": "MiniMaxForCausalLM",
    "minimax_m1": "MiniMaxM1ForCausalLM",
}


def config_from(settings: Mapping[str, Any]) -> ModelConfig:
    """Return our configuration of a Hugging Face `config.json`.

    Raises:
        CheckpointError: the model type or one of its settings has no exact equivalent here; names
            the setting and its value.
    """
    kind = settings.get("model_type")
    if kind in _MINIMAX or "attn_type_list" in settings:
        fields = _minimax_fields(settings)
    elif kind in _DENSE:
        fields = _dense_fields(settings)
    else:
        raise CheckpointError(
            f"model_type={kind!r} is not supported; it must be one of "
            f"{', '.join((*_MINIMAX, *_DENSE))}"
        )
    try:
        return ModelConfig.model_validate(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"])
        raise CheckpointError(
            f"config.json gives no valid model: {field} {first['msg']}"
        ) from error


def _common_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    hidden, heads = _need(settings, "hidden_size"), _need(settings, "num_attention_heads")
    _refuse(settings, "hidden_act", "silu")
    _refuse(settings, "sliding_window", None)
    head_dim = settings.get("head_dim") or hidden // heads
    return {
        "vocab_size": _need(settings, "vocab_size"),
        "hidden_size": hidden,
        "num_heads": heads,
        "num_kv_heads": settings.get("num_key_value_heads") or heads,
        "head_dim": head_dim,
        "rotary_dim": _rotary_dim(settings, head_dim),
        "rope_base": _rope(settings).get("rope_theta", settings.get("rope_theta", 10_000.0)),
        "expert_hidden_size": _need(settings, "intermediate_size"),
        "norm_eps": settings.get("rms_norm_eps", 1e-6),
        "init_std": settings.get("initializer_range", 0.02),
    }


def _minimax_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    layers = settings.get("attn_type_list") or settings.get("layer_types")
    if layers is None:
        raise CheckpointError(
            "config.json has neither layer_types nor attn_type_list, so the kind of each layer is "
            "unknown; add layer_types"
        )
    unknown = [layer for layer in layers if layer not in _LAYERS]
    if unknown:
        raise CheckpointError(f"config.json names an unknown kind of layer: {unknown[0]!r}")
    alpha = (2.0 * len(layers)) ** 0.25
    for name in _ALPHAS:
        if name in settings and abs(settings[name] - alpha) > 1e-4 * alpha:
            raise CheckpointError(
                f"{name}={settings[name]} differs from DeepNorm's (2 x {len(layers)} layers)^(1/4) "
                f"= {alpha:.7g}, which is the only residual scale this model has"
            )
    for name in _BETAS:
        _refuse(settings, name, 1)
    _refuse(settings, "postnorm", True)
    _refuse(settings, "shared_intermediate_size", 0)
    return _common_fields(settings) | {
        "block_types": [_LAYERS[layer] for layer in layers],
        "num_experts": _need(settings, "num_local_experts"),
        "experts_per_token": _need(settings, "num_experts_per_tok"),
        "router_aux_loss_coef": settings.get("router_aux_loss_coef", 0.001),
    }


def _dense_fields(settings: Mapping[str, Any]) -> dict[str, Any]:
    kind = settings["model_type"]
    # qwen2 has biases on q, k and v by definition; elsewhere attention_bias would add one to the
    # output projection too.
    _refuse(settings, "attention_bias", False)
    _refuse(settings, "mlp_bias", False)
    _refuse(settings, "use_sliding_window", False)
    if kind in ("qwen2", "qwen3"):
        settings = {name: value for name, value in settings.items() if name != "sliding_window"}
    return _common_fields(settings) | {
        "block_types": ["softmax"] * _need(settings, "num_hidden_layers"),
        "num_experts": 1,
        "experts_per_token": 1,
        "router_aux_loss_coef": 0.0,
        "residual": "prenorm",
        "qkv_bias": kind == "qwen2",
        "qk_norm": kind == "qwen3",
    }


def _rope(settings: Mapping[str, Any]) -> dict[str, Any]:
    rope = settings.get("rope_parameters") or settings.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind != "default":
        raise CheckpointError(
            f"rope_type={kind!r} is not supported; only plain rotary positions are (set the base "
            "by the recipe's extension stages)"
        )
    return dict(rope)


def _rotary_dim(settings: Mapping[str, Any], head_dim: int) -> int:
    if settings.get("rotary_dim") is not None:
        return int(settings["rotary_dim"])
    share = settings.get("partial_rotary_factor", _rope(settings).get("partial_rotary_factor", 1.0))
    return int(head_dim * share)


def _need(settings: Mapping[str, Any], name: str) -> Any:
    if settings.get(name) is None:
        raise CheckpointError(f"config.json has no {name}; restore it from its source")
    return settings[name]


def _refuse(settings: Mapping[str, Any], name: str, only: object) -> None:
    if name in settings and settings[name] != only:
        raise CheckpointError(
            f"{name}={settings[name]!r} is not supported; this model computes {name}={only!r} only"
        )


def kind_of(config: ModelConfig) -> str:
    """Return the Hugging Face `model_type` that expresses this architecture exactly.

    `minimax_m1` is the layout of the published M1 files: transformers' own `minimax` cannot rotate
    a part of a head.

    Raises:
        CheckpointError: none does; names the setting that stands in the way.
    """
    lightning = "lightning" in config.block_types
    if config.residual == "deepnorm":
        if config.num_experts == 1:
            raise CheckpointError(
                "num_experts=1 has no router, which the MiniMax layout requires; keep the native "
                "checkpoint format"
            )
        if config.qkv_bias or config.qk_norm:
            raise CheckpointError(
                f"qkv_bias={config.qkv_bias}, qk_norm={config.qk_norm} do not exist in the MiniMax "
                "layout; keep the native checkpoint format"
            )
        partial = "softmax" in config.block_types and config.rotary_dim != config.head_dim
        return "minimax_m1" if partial else "minimax"
    problem = {
        "block_types with lightning layers": lightning,
        f"num_experts={config.num_experts}": config.num_experts > 1,
        f"rotary_dim={config.rotary_dim} of head_dim={config.head_dim}": config.rotary_dim
        != config.head_dim,
        "qkv_bias together with qk_norm": config.qkv_bias and config.qk_norm,
    }
    for what, present in problem.items():
        if present:
            raise CheckpointError(
                f"residual='prenorm' with {what} is neither llama nor qwen; keep the native "
                "checkpoint format"
            )
    if config.qk_norm:
        return "qwen3"
    return "qwen2" if config.qkv_bias else "llama"


def settings_of(config: ModelConfig) -> dict[str, Any]:
    """Return the content of a Hugging Face `config.json` for this architecture.

    Raises:
        CheckpointError: the architecture has no equivalent there.
    """
    kind = kind_of(config)
    common = {
        "model_type": kind,
        "architectures": [_CLASSES[kind]],
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.expert_hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "rope_theta": config.rope_base,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_base},
        "initializer_range": config.init_std,
        "tie_word_embeddings": False,
    }
    if not kind.startswith("minimax"):
        return common | ({"attention_bias": False} if kind != "qwen2" else {})
    common |= {
        "num_local_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
        "router_aux_loss_coef": config.router_aux_loss_coef,
    }
    return common | (_m1_keys(config) if kind == "minimax_m1" else _transformers_keys(config))


def _transformers_keys(config: ModelConfig) -> dict[str, Any]:
    names = {"lightning": "linear_attention", "softmax": "full_attention"}
    alpha = (2.0 * config.num_layers) ** 0.25
    return {
        "block_size": config.lightning_chunk,
        "layer_types": [names[kind] for kind in config.block_types],
        **{name: alpha for name in _ALPHAS if name.endswith("factor")},
    }


def _m1_keys(config: ModelConfig) -> dict[str, Any]:
    alpha = (2.0 * config.num_layers) ** 0.25
    return {
        "attn_type_list": [int(kind == "softmax") for kind in config.block_types],
        "rotary_dim": config.rotary_dim,
        "postnorm": True,
        "shared_intermediate_size": 0,
        **{name: alpha for name in _ALPHAS if name.startswith("layernorm")},
        **{name: 1 for name in _BETAS if name.startswith("layernorm")},
    }
