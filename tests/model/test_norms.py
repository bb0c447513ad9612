import torch

from longstride.model.norms import RMSNorm


def test_norm_equals_torch_rms_norm() -> None:
    x, norm = torch.randn(4, 7, 24), RMSNorm(24, 1e-5)
    norm.weight.data = torch.rand(24)
    torch.testing.assert_close(norm(x), torch.nn.functional.rms_norm(x, (24,), norm.weight, 1e-5))


def test_gradients_of_input_and_weight_are_exact() -> None:
    norm = RMSNorm(5, 1e-2).double()
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)

    def run(inputs: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(norm, {"weight": weight}, (inputs,))

    assert torch.autograd.gradcheck(run, (x, norm.weight))


def test_values_with_and_without_gradients_are_the_same() -> None:
    x, norm = torch.randn(4, 24), RMSNorm(24, 1e-5)
    with torch.no_grad():
        quiet = norm(x)
    assert torch.equal(norm(x), quiet)


def test_a_zero_row_stays_finite() -> None:
    x = torch.zeros(2, 8, requires_grad=True)
    RMSNorm(8, 1e-6)(x).sum().backward()
    assert x.grad.isfinite().all()
