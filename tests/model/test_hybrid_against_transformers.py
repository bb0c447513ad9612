"""The oracle is transformers' own MiniMax: fp32, uncached, whole-head rotation, both orders."""

import pytest
import torch
from tiny_models import SEVEN_TO_ONE, random_tokens, small_model

from longstride.errors import CheckpointError
from longstride.model.architectures import settings_of
from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs
from longstride.model.names import from_transformers, rename, to_transformers

CHUNK = 8
SOFTMAX_FIRST = ["softmax", "lightning", "softmax", "lightning"]


@pytest.fixture(scope="module", params=[SEVEN_TO_ONE, SOFTMAX_FIRST], ids=["m1", "softmax-first"])
def ours(request: pytest.FixtureRequest) -> HybridModel:
    return small_model(block_types=request.param, rotary_dim=8, lightning_chunk=CHUNK)


@pytest.fixture(scope="module")
def theirs(ours: HybridModel) -> torch.nn.Module:
    from transformers import MiniMaxConfig, MiniMaxForCausalLM

    config = MiniMaxConfig(**settings_of(ours.config), attn_implementation="eager")
    config._experts_implementation = "eager"
    model = MiniMaxForCausalLM(config)
    missing, unexpected = model.load_state_dict(to_transformers(ours), strict=False)
    assert not unexpected
    assert all("decay" in name or "slope" in name for name in missing)
    return model


@pytest.mark.parametrize("tokens", [1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 3])
def test_logits_equal(ours: HybridModel, theirs: torch.nn.Module, tokens: int) -> None:
    batch = random_tokens(3, tokens)
    want = theirs(batch, use_cache=False).logits
    torch.testing.assert_close(ours.logits(ours(batch).hidden_BTD), want, atol=1e-4, rtol=0)


def test_logits_equal_under_right_padding(ours: HybridModel, theirs: torch.nn.Module) -> None:
    batch = random_tokens(2, 27)
    mask = torch.ones_like(batch)
    mask[1, 11:] = 0
    want = theirs(batch, attention_mask=mask, use_cache=False).logits
    got = ours.logits(ours(batch, segments_BT=mask - 1).hidden_BTD)
    torch.testing.assert_close(got[mask == 1], want[mask == 1], atol=1e-4, rtol=0)


def test_loss_and_every_gradient_equal(ours: HybridModel, theirs: torch.nn.Module) -> None:
    batch = random_tokens(2, 27)
    run = ours(batch)
    logp, _ = token_logprobs(ours, run.hidden_BTD[:, :-1], batch[:, 1:])
    loss = -logp.mean() + ours.config.router_aux_loss_coef * run.aux_loss
    loss.backward()
    want = theirs(batch, labels=batch, use_cache=False, output_router_logits=True)
    want.loss.backward()
    assert loss.item() == pytest.approx(want.loss.item(), abs=1e-5)
    grads = rename(ours.config, {name: p.grad for name, p in ours.named_parameters()})
    for name, parameter in theirs.named_parameters():
        worst = (grads[name] - parameter.grad).abs().max()
        assert worst <= 1e-4 * parameter.grad.abs().max() + 1e-7, name


def test_balancing_loss_equals_under_padding(ours: HybridModel, theirs: torch.nn.Module) -> None:
    batch = random_tokens(2, 20)
    mask = torch.ones_like(batch)
    mask[1, 5:] = 0
    want = theirs(batch, attention_mask=mask, use_cache=False, output_router_logits=True)
    got = ours(batch, segments_BT=mask - 1).aux_loss
    assert got.item() == pytest.approx(want.aux_loss.item(), abs=1e-5)


def test_weights_survive_the_trip_to_transformers_and_back(ours: HybridModel) -> None:
    back = from_transformers(ours.config, to_transformers(ours))
    for name, tensor in ours.state_dict().items():
        assert torch.equal(tensor, back.state_dict()[name]), name


def test_a_missing_transformers_tensor_is_named(ours: HybridModel) -> None:
    weights = to_transformers(ours)
    del weights["model.layers.3.mlp.gate.weight"]
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.mlp\.gate\.weight"):
        from_transformers(ours.config, weights)
