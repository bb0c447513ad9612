"""Operations of generation against values computed by hand from the published architectures."""

import pytest

from longstride.recipe.generation_cost import cost_of, deepseek_r1, ratio
from longstride.recipe.loading import load_recipe
from schemas.model import ModelConfig


@pytest.fixture(scope="module")
def m1():
    return cost_of(load_recipe("pipelines/recipes/minimax-m1.yaml", []).model, head=False)


def test_m1_by_hand(m1):
    """45.9e9 active; 10 softmax layers of 64 x 128; 70 lightning layers of 64 heads of 128."""
    assert m1.dense == pytest.approx(2 * 45.9e9, rel=2e-3)
    assert m1.per_position == 10 * 4 * 64 * 128
    assert m1.constant == 70 * 4 * 64 * 128 * 128
    assert m1.cache_per_position == 10 * 2 * 8 * 128 * 2
    assert m1.state == 70 * 64 * 128 * 128 * 4


def test_r1_by_hand():
    assert deepseek_r1().at_position(0) == 74e9
    assert deepseek_r1().per_position == 61 * 128 * 2 * (192 + 128)
    assert deepseek_r1(absorbed=True).per_position == 61 * 128 * 2 * (576 + 512)


@pytest.mark.parametrize(
    ("thousands", "cumulative", "at_position", "absorbed"),
    [
        (8, 0.99, 0.83, 0.45), (16, 0.83, 0.63, 0.28), (32, 0.63, 0.43, 0.16),
        (64, 0.43, 0.28, 0.10), (100, 0.34, 0.22, 0.07), (128, 0.28, 0.19, 0.06),
    ],
)  # fmt: skip
def test_ratios_to_r1_as_they_were_worked_out_from_the_formulae(
    m1, thousands, cumulative, at_position, absorbed
):
    """The table of the formulae 2 x active + 4 x width x n, for three ways to count."""
    tokens = thousands * (1024 if thousands != 100 else 1000)
    r1 = deepseek_r1()
    assert ratio(m1, r1, tokens, "cumulative") == pytest.approx(cumulative, abs=0.011)
    assert ratio(m1, r1, tokens, "at_position") == pytest.approx(at_position, abs=0.011)
    latent = deepseek_r1(absorbed=True)
    assert ratio(m1, latent, tokens, "at_position") == pytest.approx(absorbed, abs=0.011)


def test_the_report_s_claims_lie_within_the_ways_to_count(m1):
    """Under 50% at 64K holds however one counts; "about 25% at 100K" lies between two ways."""
    r1 = deepseek_r1()
    assert all(ratio(m1, r1, 64_000, way) < 0.5 for way in ("cumulative", "at_position"))
    assert ratio(m1, r1, 100_000, "at_position") < 0.25 < ratio(m1, r1, 100_000, "cumulative")


def test_decoding_sums_positions():
    """Against the sum over every position, of which the closed form is the limit."""
    cost = cost_of(ModelConfig())
    exact = sum(cost.at_position(n) for n in range(100, 1100))
    assert cost.decode(1000, prompt=100) == pytest.approx(exact, rel=1e-3)
    assert cost.decode(1000) == cost.prefill(1000)


def test_memory_of_the_hybrid_grows_an_eighth_as_fast_as_softmax_alone():
    layers = ["softmax"] * 8
    hybrid, dense = cost_of(ModelConfig()), cost_of(ModelConfig(block_types=layers))
    assert dense.cache_per_position == 8 * hybrid.cache_per_position
    assert dense.state == 0 < hybrid.state
