import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longstride.rl.audits import (
    UpdateTokens,
    bucket_rows,
    bucket_shares,
    gradient_shares,
    sampler_agreement,
    weight_statistics,
)
from schemas.audit import AuditConfig


def tokens(ratio, advantage, weight=None, coefficient=None, bucket=None, position=None, old=None):
    """Tokens of an update; what is not given is plain."""
    size = len(ratio)
    old = old or [-1.0] * size
    new = [value + np.log(r) for value, r in zip(old, ratio, strict=True)]
    columns = (ratio, weight or ratio, advantage, coefficient or [1 / size] * size, old, new,
               position or [0.0] * size)  # fmt: skip
    floats = [torch.tensor(column, dtype=torch.float64) for column in columns]
    return UpdateTokens(*floats, torch.tensor(bucket or [-1] * size))


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
    statistics = weight_statistics(tokens([0.5, 6.0, 7.0, 1.0], [1.0, 1.0, -1.0, -1.0]), cap=5.0)
    assert statistics["capped_fraction"] == 0.5
    assert statistics["capped_fraction_positive"] == 0.25
    assert statistics["capped_fraction_negative"] == 0.25
    assert statistics["max"] == 7.0


@given(st.lists(st.floats(0.01, 100), min_size=1, max_size=40))
def test_quantiles_of_the_weights_are_numpys(ratios):
    statistics = weight_statistics(tokens(ratios, [1.0] * len(ratios)), cap=None)
    for name, percent in (("p50", 50), ("p95", 95), ("p99", 99)):
        assert statistics[name] == pytest.approx(np.percentile(ratios, percent), rel=1e-9)
    assert statistics["capped_fraction"] == 0


def test_equal_weights_have_an_effective_sample_size_of_one_and_a_single_one_of_its_share():
    assert weight_statistics(tokens([2.0] * 4, [1.0] * 4), 5.0)["effective_sample_size"] == 1
    lone = weight_statistics(tokens([1.0, 1e-9, 1e-9, 1e-9], [1.0] * 4), 5.0)
    assert lone["effective_sample_size"] == pytest.approx(0.25)


def test_the_gradient_is_shared_by_weight_times_advantage_and_not_by_tokens():
    shares = gradient_shares(
        tokens([1, 5, 1, 1], [1.0, 1.0, -2.0, -1.0], position=[0.0, 0.4, 0.5, 0.9])
    )
    assert shares["first_third"] == pytest.approx(1 / 9)
    assert shares["middle_third"] == pytest.approx(7 / 9)
    assert shares["negative"] == pytest.approx(3 / 9)
    assert shares["last_third_negative"] == pytest.approx(1 / 9)
    assert gradient_shares(tokens([1.0], [0.0])) == {}


def test_a_rare_word_that_ppo_drops_is_shown_with_its_share_of_the_gradient():
    rows = bucket_rows(
        tokens([2.5, 1.1, 1.0, 0.5], [1.0, 1.0, 1.0, -1.0], weight=[2.0, 1.1, 1.0, 0.5],
               bucket=[0, 1, -1, -1], old=[np.log(0.02), np.log(0.1), -1.0, -1.0]),
        ("wait", "however"), AuditConfig(clip_low=0.2, clip_high=0.2), cap=2.0, batch=3,
        off_policy_round=7,
    )  # fmt: skip
    shares = bucket_shares(rows)
    assert shares["wait/ppo_dropped_share"] == shares["wait/capped_share"] == 1
    assert shares["however/ppo_dropped_share"] == shares["however/capped_share"] == 0
    assert shares["wait/gradient_share"] == pytest.approx(2 / 4.6)
    assert shares["wait/probability_change"] == pytest.approx(0.03)
    assert shares["reflection/gradient_share"] == pytest.approx(3.1 / 4.6)
    assert shares["other/ppo_dropped_share"] == 0.5
    assert shares["other/ppo_dropped_gradient_share"] == pytest.approx(0.5 / 4.6)
    assert {(row.batch, row.off_policy_round) for row in rows} == {(3, 7)}


@given(st.lists(st.tuples(st.floats(0.1, 9), st.sampled_from([-2.0, 1.0]),
                          st.integers(-1, 1)), min_size=2, max_size=30), st.data())  # fmt: skip
def test_rows_of_two_updates_add_up_to_those_of_both_together(entries, data):
    cut = data.draw(st.integers(1, len(entries) - 1))

    def shares(*parts):
        rows = []
        for part in parts:
            ratio, advantage, bucket = map(list, zip(*part, strict=True))
            made = tokens(ratio, advantage, bucket=bucket, coefficient=[0.01] * len(part))
            rows += bucket_rows(made, ("wait", "aha"), AuditConfig(), 5.0, 0, 1)
        return bucket_shares(rows)

    whole, cut_up = shares(entries), shares(entries[:cut], entries[cut:])
    assert cut_up == pytest.approx(whole)
