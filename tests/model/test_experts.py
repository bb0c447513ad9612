import pytest
import torch
from tiny_models import small_config

from longstride.model.experts import Balance, ExpertMixture, load_balancing_loss


def mixture(dtype: torch.dtype = torch.float64, **changes: int) -> ExpertMixture:
    layer = ExpertMixture(small_config(**changes))
    generator = torch.Generator().manual_seed(0)
    for parameter in layer.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator) * 0.4
    return layer.to(dtype)


def spelled_out(layer: ExpertMixture, x: torch.Tensor) -> torch.Tensor:
    """Softmax over all experts, keep the two best, renormalise; token by token."""
    rows = []
    for token in x.reshape(-1, x.shape[-1]):
        probs = (layer.router.weight @ token).softmax(-1)
        best = probs.topk(2).indices
        total = torch.zeros_like(token)
        for expert in best:
            w1, w3 = layer.w13[expert].chunk(2)
            hidden = torch.nn.functional.silu(w1 @ token) * (w3 @ token)
            total = total + probs[expert] / probs[best].sum() * (layer.w2[expert] @ hidden)
        rows.append(total)
    return torch.stack(rows).view_as(x)


def test_the_mixture_is_the_textbook_one() -> None:
    layer, x = mixture(), torch.randn(2, 9, 24, dtype=torch.float64)
    torch.testing.assert_close(layer(x)[0], spelled_out(layer, x))


def test_single_steps_equal_the_batch() -> None:
    layer, x = mixture(), torch.randn(1, 9, 24, dtype=torch.float64)
    base = torch.zeros(1, 24, dtype=torch.float64)
    steps = [layer.step(token[None], base, 0.0) for token in x[0]]
    torch.testing.assert_close(torch.cat(steps), layer(x)[0][0])


def test_gradients_of_inputs_router_and_experts_are_exact() -> None:
    layer = mixture(expert_hidden_size=4)
    x = torch.randn(1, 4, 24, dtype=torch.float64, requires_grad=True)
    names = [name for name, _ in layer.named_parameters()]

    def run(inputs: torch.Tensor, *weights: torch.Tensor) -> torch.Tensor:
        given = dict(zip(names, weights, strict=True))
        return torch.func.functional_call(layer, given, (inputs,))[0]

    assert torch.autograd.gradcheck(run, (x, *layer.parameters()), fast_mode=True)


def test_an_expert_without_tokens_gets_a_zero_gradient() -> None:
    layer = mixture()
    layer.router.weight.data[3] = 0.0
    layer.router.weight.data[:3] = 5.0
    layer(torch.ones(1, 5, 24, dtype=torch.float64))[0].sum().backward()
    assert layer.w13.grad[3].abs().max() == 0.0
    assert layer.w2.grad.isfinite().all()


@pytest.mark.parametrize(("share", "expected"), [([0.25] * 4, 2.0), ([1.0, 0.0, 0.0, 0.0], 8.0)])
def test_balancing_loss_is_k_when_even_and_e_times_k_when_collapsed(
    share: list[float], expected: float
) -> None:
    tokens, probs = 10, torch.tensor(share)
    layer = Balance(counts_E=probs * 2 * tokens, probs_E=probs * tokens)
    assert load_balancing_loss([layer, layer], tokens).item() == pytest.approx(expected)
