import numpy as np
import pytest
import torch

from longstride.rl.audits import sampler_agreement, weight_statistics


def test_the_correlation_is_numpys_over_probabilities():
    generator = torch.Generator().manual_seed(0)
    sampler = -3 * torch.rand(200, generator=generator)
    trainer = sampler + 0.1 * torch.randn(200, generator=generator)
    agreement = sampler_agreement(sampler, trainer)
    expected = np.corrcoef(sampler.double().exp(), trainer.double().exp())[0, 1]
    assert agreement.correlation == pytest.approx(expected, abs=1e-9)
    assert agreement.kl_k3 > 0


def test_equal_probabilities_agree_exactly_even_without_spread():
    logp = torch.full((5,), -0.5)
    agreement = sampler_agreement(logp, logp)
    assert (agreement.correlation, agreement.max_difference, agreement.kl_k3) == (1.0, 0.0, 0.0)


def test_a_token_whose_sampling_probability_was_lost_is_left_out():
    sampler = torch.tensor([-1.0, float("nan"), -2.0])
    assert sampler_agreement(sampler, torch.tensor([-1.0, -9.0, -2.0])).correlation == 1.0


def test_a_capped_token_counts_whichever_sign_its_advantage_has():
    statistics = weight_statistics(
        torch.tensor([0.5, 6.0, 7.0, 1.0]), torch.tensor([1.0, 1.0, -1.0, -1.0]), cap=5.0
    )
    assert statistics["capped_fraction"] == 0.5
    assert statistics["capped_fraction_positive"] == 0.25
    assert statistics["capped_fraction_negative"] == 0.25
    assert statistics["max"] == 7.0
