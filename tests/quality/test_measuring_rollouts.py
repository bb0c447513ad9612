"""E5: measured numbers equal closed forms and other people's."""

import numpy as np
import pytest
from quality_parts import make_recipe, make_rollouts, measure, write_rollouts
from scipy import stats

from longstride.quality.agreement import Agreement
from longstride.quality.measure_rollouts import _interval
from longstride.quality.scripts import scripts_of

RECIPE = make_recipe()


def measured(rollouts, out, **summary):
    return measure("E5", "rl-1", RECIPE, write_rollouts(out / "r", rollouts, **summary))


def test_agreement_equals_closed_forms(tmp_path):
    rollouts = make_rollouts()
    summary = measured(rollouts, tmp_path).summary
    sampler = np.concatenate([r.logprobs for r in rollouts])
    trainer = np.concatenate([r.trainer_logprobs for r in rollouts])
    ratio = np.exp(trainer - sampler)
    assert summary["mismatch_kl"] == pytest.approx((ratio - 1 - np.log(ratio)).mean())
    expected = np.corrcoef(np.exp(sampler), np.exp(trainer))[0, 1]
    assert summary["probability_correlation"] == pytest.approx(expected)


@pytest.mark.parametrize("held", [1, 7, 1 << 16])
def test_agreement_does_not_depend_on_how_many_tokens_are_held(held, monkeypatch):
    monkeypatch.setattr("longstride.quality.agreement._HELD", held)
    agreement = Agreement()
    for rollout in make_rollouts():
        agreement.add(rollout)
    facts = agreement.facts()
    assert facts["probability_correlation"] == pytest.approx(0.99999, abs=1e-4)
    assert facts["mismatch_kl"] == pytest.approx(1.7e-7, rel=0.2)


@pytest.mark.parametrize(("apart", "correlation"), [(0.0, 1.0), (-0.2, 0.0)])
def test_agreement_without_spread_is_one_only_for_equal_series(apart, correlation):
    agreement = Agreement()
    same = {"logprobs": [-0.5] * 4, "trainer_logprobs": [-0.5 + apart] * 4, "tokens": [9] * 4}
    agreement.add(make_rollouts()[0].model_copy(update=same))
    assert agreement.facts()["probability_correlation"] == correlation


def test_the_ladders_lowered_cap_counts_and_not_the_recipes(tmp_path):
    rollouts = make_rollouts()
    weights = [weight for r in rollouts for weight in r.importance_weights]
    share = sum(weight > 1.0 for weight in weights) / len(weights)
    summary = measured(rollouts, tmp_path, is_weight_cap=1.0).summary
    assert summary["capped_share"] == pytest.approx(share)


def test_culprits_name_batch_and_group(tmp_path):
    found = measured(make_rollouts()[:-1], tmp_path)
    assert found.culprits["broken_groups"] == ["batch 1 group 2"]


def test_the_interval_of_a_correlation_is_scipys():
    rng = np.random.default_rng(3)
    x = rng.normal(size=40)
    y = 0.4 * x + rng.normal(size=40)
    found = stats.pearsonr(x, y)
    expected = found.confidence_interval(0.95)
    assert _interval(float(found.statistic), 40) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize(
    ("text", "scripts"),
    [
        ("plain text", {"latin"}),
        ("12 + 3", set()),
        ("the angle \u03b1\u03b2 is right", {"latin"}),
        ("\u043f\u0440\u0438\u0432\u0435\u0442 and more", {"latin", "cyrillic"}),
        ("\u65e5\u672c\u306e\u307e", {"han"}),
    ],
)
def test_scripts_of_an_answer(text, scripts):
    assert scripts_of(text) == scripts
