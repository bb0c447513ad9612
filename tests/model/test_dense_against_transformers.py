"""The oracle for dense models is transformers' llama, qwen2 and qwen3 in fp32."""

import pytest
import torch
from tiny_models import random_tokens, small_model

from longstride.model.architectures import settings_of
from longstride.model.decoding import decode_step, prefill
from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs
from longstride.model.names import rename, to_transformers

KINDS = {
    "llama": {},
    "qwen2": {"qkv_bias": True},
    "qwen3": {"qk_norm": True},
}


@pytest.fixture(scope="module", params=KINDS)
def ours(request: pytest.FixtureRequest) -> HybridModel:
    model = small_model(
        block_types=["softmax"] * 3, num_experts=1, experts_per_token=1, rotary_dim=8,
        residual="prenorm", router_aux_loss_coef=0.0, **KINDS[request.param],
    )  # fmt: skip
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "q_norm.weight", "k_norm.weight")):
                parameter += 0.5 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.fixture(scope="module")
def theirs(ours: HybridModel) -> torch.nn.Module:
    from transformers import AutoConfig, AutoModelForCausalLM

    settings = settings_of(ours.config)
    model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**settings))
    model.load_state_dict(to_transformers(ours))
    return model


def test_logits_equal(ours: HybridModel, theirs: torch.nn.Module) -> None:
    batch = random_tokens(3, 21)
    got = ours.logits(ours(batch).hidden_BTD)
    torch.testing.assert_close(got, theirs(batch).logits, atol=1e-4, rtol=0)


def test_loss_and_every_gradient_equal(ours: HybridModel, theirs: torch.nn.Module) -> None:
    batch = random_tokens(2, 17)
    ours.zero_grad()
    theirs.zero_grad()
    logp, _ = token_logprobs(ours, ours(batch).hidden_BTD[:, :-1], batch[:, 1:])
    (-logp.mean()).backward()
    theirs(batch, labels=batch).loss.backward()
    grads = rename(ours.config, {name: p.grad for name, p in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        worst = (grads[name] - parameter.grad).abs().max()
        assert worst <= 1e-4 * parameter.grad.abs().max() + 1e-7, name


def test_decoding_equals_the_full_forward(ours: HybridModel, theirs: torch.nn.Module) -> None:
    batch = random_tokens(2, 24)
    want = theirs(batch).logits
    state = prefill(ours, batch[:, :5], torch.tensor([5, 5]))
    for position in range(5, 24):
        decode_step(ours, state, batch[:, position])
        got = ours.logits(state.hidden_RX)
        torch.testing.assert_close(got, want[:, position], atol=1e-4, rtol=0)


def test_packed_documents_do_not_see_each_other(ours: HybridModel, theirs: torch.nn.Module) -> None:
    first, second = random_tokens(1, 9, seed=1), random_tokens(1, 7, seed=2)
    segments = torch.tensor([[0] * 9 + [1] * 7 + [-1] * 4])
    row = torch.cat([first, second, torch.zeros(1, 4, dtype=torch.long)], dim=1)
    got = ours.logits(ours(row, segments).hidden_BTD)
    torch.testing.assert_close(got[:, :9], theirs(first).logits, atol=1e-4, rtol=0)
    torch.testing.assert_close(got[:, 9:16], theirs(second).logits, atol=1e-4, rtol=0)
