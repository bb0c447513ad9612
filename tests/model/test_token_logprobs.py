import pytest
import torch
from tiny_models import random_tokens, small_model

from longstride.model.logprobs import token_logprobs


@pytest.mark.parametrize("chunk", [None, 1, 7, 100])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_values_and_gradients_equal_the_whole_softmax(
    chunk: int | None, temperature: float
) -> None:
    model, targets = small_model(), random_tokens(3, 10, seed=1)
    hidden = torch.randn(3, 10, 24, requires_grad=True)
    weight = model.head.weight
    logp, entropy = token_logprobs(model, hidden, targets, temperature, chunk)
    whole = (model.logits(hidden) / temperature).log_softmax(-1)
    want = whole.gather(-1, targets[..., None])[..., 0]
    torch.testing.assert_close(logp, want)
    torch.testing.assert_close(entropy, -(whole.exp() * whole).sum(-1))
    scale = torch.randn(3, 10)
    got_grads = torch.autograd.grad((logp * scale).sum(), (hidden, weight))
    want_grads = torch.autograd.grad((want * scale).sum(), (hidden, weight))
    torch.testing.assert_close(got_grads, want_grads, atol=1e-5, rtol=1e-4)


def test_gradient_is_exact_in_double_precision() -> None:
    model, targets = small_model().double(), random_tokens(2, 3)
    hidden = torch.randn(2, 3, 24, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(
        lambda h: token_logprobs(model, h, targets, 0.8, 2)[0], (hidden,)
    )


def test_entropy_carries_no_gradient() -> None:
    hidden = torch.randn(1, 2, 24, requires_grad=True)
    assert not token_logprobs(small_model(), hidden, random_tokens(1, 2))[1].requires_grad


def test_bf16_hidden_states_give_fp32_results_and_bf16_gradients() -> None:
    hidden = torch.randn(1, 4, 24, dtype=torch.bfloat16, requires_grad=True)
    logp, _ = token_logprobs(small_model().bfloat16(), hidden, random_tokens(1, 4))
    logp.sum().backward()
    assert logp.dtype == torch.float32
    assert hidden.grad.dtype == torch.bfloat16


def test_huge_logits_stay_finite() -> None:
    logp, entropy = token_logprobs(small_model(), torch.full((1, 3, 24), 1e4), random_tokens(1, 3))
    assert logp.isfinite().all() and entropy.isfinite().all()


def test_temperature_zero_and_mismatched_shapes_are_refused() -> None:
    model, hidden = small_model(), torch.zeros(1, 4, 24)
    with pytest.raises(ValueError, match="temperature=0"):
        token_logprobs(model, hidden, random_tokens(1, 4), temperature=0.0)
    with pytest.raises(ValueError, match="cut both to the same positions"):
        token_logprobs(model, hidden, random_tokens(1, 3))
