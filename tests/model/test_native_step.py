"""The decode step in one native call, against the step in PyTorch operations."""

from __future__ import annotations

import copy

import pytest
import torch
from tiny_models import random_tokens, small_model

from longstride.model.decoding import DecodeState, decode_step, empty_state, prefill
from longstride.model.hybrid import HybridModel
from longstride.model.kernels import operations
from longstride.model.kernels.library import library
from longstride.model.stepping import native_step

pytestmark = pytest.mark.skipif(library() is None, reason="needs the C kernels")

MODELS = {
    "hybrid": {},
    "softmax first": {"block_types": ["softmax", "lightning"]},
    "odd sizes": {"hidden_size": 20, "expert_hidden_size": 13, "num_experts": 3},
    "dense": {"residual": "prenorm", "num_experts": 1, "experts_per_token": 1},
    "dense with biases": {
        "block_types": ["softmax"] * 2, "residual": "prenorm", "num_experts": 1,
        "experts_per_token": 1, "qkv_bias": True,
    },
    "experts without deepnorm": {"residual": "prenorm"},
    "no rotation": {"rotary_dim": 0},
}  # fmt: skip


def read(model: HybridModel, rows: int, longest: int = 9) -> DecodeState:
    lengths, every = torch.arange(rows) % longest + 1, torch.arange(rows)
    state = empty_state(model, rows, longest)
    state.write(every, prefill(model, random_tokens(rows, longest), lengths), every)
    return state


@pytest.mark.parametrize("rows", [1, 2, 5, 6, 7, 19])
@pytest.mark.parametrize("name", MODELS)
def test_the_native_step_computes_what_the_plain_step_does(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = small_model(**MODELS[name])
    for parameter_name, parameter in model.named_parameters():
        if parameter_name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    native = native_step(model)
    assert native is not None
    state = read(model, rows)
    expected = copy.deepcopy(state)
    with torch.inference_mode():
        for step in range(12):
            native(state, random_tokens(rows, 1, seed=step)[:, 0])
    monkeypatch.setattr(operations, "library", lambda: None)
    with torch.inference_mode():
        for step in range(12):
            decode_step(model, expected, random_tokens(rows, 1, seed=step)[:, 0])
    torch.testing.assert_close(state.hidden_RX, expected.hidden_RX, rtol=1e-4, atol=1e-5)
    assert state.lengths_R.tolist() == expected.lengths_R.tolist()
    for mine, theirs in zip(state.layers, expected.layers, strict=True):
        used = slice(None) if mine.lightning else slice(0, 21)
        for one, other in zip(mine.tensors, theirs.tensors, strict=True):
            torch.testing.assert_close(one[:, :, used], other[:, :, used], rtol=1e-4, atol=1e-5)


def test_a_row_gets_the_same_bits_whoever_shares_its_batch() -> None:
    model = small_model()
    native = native_step(model)
    assert native is not None
    many, tokens = read(model, 19), random_tokens(19, 1)[:, 0]
    few = copy.deepcopy(many)
    native(many, tokens)
    native(few, tokens[:4])
    assert torch.equal(many.hidden_RX[:4], few.hidden_RX[:4])


def test_nan_in_a_weight_reaches_the_output() -> None:
    model = small_model()
    with torch.no_grad():
        model.blocks[1].attention.qkv_proj.weight[0, 0] = float("nan")
    native = native_step(model)
    assert native is not None
    state = read(small_model(), 3)
    native(state, random_tokens(3, 1)[:, 0])
    assert state.hidden_RX.isnan().any()


def test_models_that_norm_queries_or_are_not_fp32_have_no_native_step() -> None:
    assert native_step(small_model(qk_norm=True)) is None
    assert native_step(small_model().double()) is None
