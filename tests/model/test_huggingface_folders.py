"""Checkpoint folders written by transformers are read, and ours are read by transformers."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_models import random_tokens, small_config, small_model

from longstride.errors import CheckpointError
from longstride.model.architectures import config_from, settings_of
from longstride.model.huggingface import load_huggingface, read_config, save_huggingface
from longstride.model.hybrid import HybridModel
from longstride.recipe.sizes import parameter_counts

DENSE = {
    "block_types": ["softmax"] * 2, "num_experts": 1, "experts_per_token": 1, "rotary_dim": 8,
    "residual": "prenorm", "router_aux_loss_coef": 0.0,
}  # fmt: skip
KINDS = {
    "llama": DENSE,
    "qwen2": DENSE | {"qkv_bias": True},
    "qwen3": DENSE | {"qk_norm": True},
    "minimax": {"rotary_dim": 8},
}


def logits_of(model: HybridModel, batch: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        return model.logits(model(batch).hidden_BTD)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shard_bytes", [10**9, 9_000], ids=["one-file", "sharded"])
def test_transformers_reads_a_folder_of_ours(tmp_path, kind, shard_bytes):
    from transformers import AutoModelForCausalLM

    model = small_model(**KINDS[kind])
    save_huggingface(model, tmp_path, shard_bytes=shard_bytes)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    batch = random_tokens(2, 19)
    want = theirs(batch, use_cache=False).logits
    torch.testing.assert_close(logits_of(model, batch), want, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_folder_written_by_transformers_is_read(tmp_path, kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(3)
    settings = settings_of(small_config(**KINDS[kind]))
    theirs = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    theirs.save_pretrained(tmp_path, max_shard_size="9KB")
    batch = random_tokens(2, 19)
    want = theirs(batch, use_cache=False).logits
    torch.testing.assert_close(
        logits_of(load_huggingface(tmp_path), batch), want, atol=1e-4, rtol=0
    )


def test_partial_rotation_goes_through_the_published_m1_layout(tmp_path):
    model = small_model()
    save_huggingface(model, tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "minimax_m1"
    back = load_huggingface(tmp_path)
    assert back.config.rotary_dim == 4
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name


def test_tied_embeddings_are_untied(tmp_path):
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = settings_of(small_config(**DENSE)) | {"tie_word_embeddings": True}
    theirs = LlamaForCausalLM(LlamaConfig(**settings))
    theirs.save_pretrained(tmp_path)
    ours = load_huggingface(tmp_path)
    batch = random_tokens(1, 9)
    torch.testing.assert_close(logits_of(ours, batch), theirs(batch).logits, atol=1e-4, rtol=0)
    assert ours.head.weight.data_ptr() != ours.embed.weight.data_ptr()


M1_CONFIG = {
    "architectures": ["MiniMaxM1ForCausalLM"],
    "attn_type_list": ([0] * 7 + [1]) * 10,
    "attention_dropout": 0.0,
    "head_dim": 128,
    "hidden_act": "silu",
    "hidden_size": 6144,
    "intermediate_size": 9216,
    "layernorm_full_attention_alpha": 3.5565588200778455,
    "layernorm_full_attention_beta": 1.0,
    "layernorm_linear_attention_alpha": 3.5565588200778455,
    "layernorm_linear_attention_beta": 1.0,
    "layernorm_mlp_alpha": 3.5565588200778455,
    "layernorm_mlp_beta": 1.0,
    "max_position_embeddings": 10240000,
    "model_type": "minimax_m1",
    "num_attention_heads": 64,
    "num_experts_per_tok": 2,
    "num_hidden_layers": 80,
    "num_key_value_heads": 8,
    "num_local_experts": 32,
    "postnorm": True,
    "rms_norm_eps": 1e-05,
    "rope_theta": 10000000,
    "rotary_dim": 64,
    "router_aux_loss_coef": 0.001,
    "shared_intermediate_size": 0,
    "sliding_window": None,
    "tie_word_embeddings": False,
    "vocab_size": 200064,
}


def test_the_published_m1_configuration_has_the_published_size():
    config = config_from(M1_CONFIG)
    with torch.device("meta"):
        model = HybridModel(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total == pytest.approx(456e9, rel=0.001)
    counted, active = parameter_counts(config)
    assert counted == total
    assert active == pytest.approx(45.9e9, rel=0.002)


@pytest.mark.parametrize("kind", KINDS)
def test_counted_parameters_are_those_of_the_model(kind):
    model = small_model(**KINDS[kind])
    total, _ = parameter_counts(model.config)
    assert total == sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layernorm_mlp_alpha": 1.0}, "layernorm_mlp_alpha=1.0 differs"),
        ({"shared_intermediate_size": 64}, "shared_intermediate_size=64 is not supported"),
        ({"hidden_act": "gelu"}, "hidden_act='gelu'"),
        ({"attn_type_list": [0, 2]}, "unknown kind of layer: 2"),
        ({"rope_scaling": {"type": "yarn"}}, "rope_type='yarn'"),
        ({"hidden_size": None}, "no hidden_size"),
        ({"num_key_value_heads": 7}, "num_kv_heads=7"),
    ],
)
def test_a_configuration_that_cannot_be_computed_exactly_is_refused(changes, message):
    with pytest.raises(CheckpointError, match=message):
        config_from(M1_CONFIG | changes)


def test_an_unknown_model_type_is_refused_with_the_known_ones():
    with pytest.raises(CheckpointError, match=r"'gpt2' is not supported.*minimax.*llama"):
        config_from({"model_type": "gpt2"})


def test_a_missing_tensor_is_named(tmp_path):
    save_huggingface(small_model(), tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.layers.1.self_attn.k_proj.weight"]
    save_file(weights, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"layers\.1\.self_attn\.k_proj"):
        load_huggingface(tmp_path)


def test_a_truncated_file_is_named(tmp_path):
    save_huggingface(small_model(), tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(CheckpointError, match=r"model\.safetensors is truncated or corrupt"):
        load_huggingface(tmp_path)


def test_a_tensor_of_the_wrong_shape_is_named(tmp_path):
    save_huggingface(small_model(), tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text()) | {"vocab_size": 48}
    (tmp_path / "config.json").write_text(json.dumps(settings))
    with pytest.raises(CheckpointError, match=r"embed_tokens.weight.*\[40, 24\].*\[48, 24\]"):
        load_huggingface(tmp_path)


def test_a_config_that_is_not_json_is_named(tmp_path):
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"config\.json cannot be read"):
        read_config(tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_experts": 1, "experts_per_token": 1}, "num_experts=1"),
        ({"qk_norm": True}, "qk_norm=True"),
        ({"residual": "prenorm"}, "lightning layers"),
        (DENSE | {"rotary_dim": 4}, "rotary_dim=4 of head_dim=8"),
        (DENSE | {"qk_norm": True, "qkv_bias": True}, "qkv_bias together with qk_norm"),
    ],
)
def test_an_architecture_without_an_equivalent_is_refused(tmp_path, changes, message):
    with pytest.raises(CheckpointError, match=message):
        save_huggingface(small_model(**changes), tmp_path)
    assert not list(tmp_path.iterdir())
