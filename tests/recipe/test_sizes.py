import pytest

from longstride.model.hybrid import HybridModel
from longstride.recipe.sizes import parameter_counts, training_flops
from schemas.model import ModelConfig, seven_to_one

M1 = ModelConfig(
    vocab_size=200_064, hidden_size=6144, block_types=seven_to_one(80), num_heads=64,
    num_kv_heads=8, head_dim=128, rotary_dim=64, rope_base=1e7, num_experts=32,
    experts_per_token=2, expert_hidden_size=9216,
)  # fmt: skip


def test_m1_has_456_billion_parameters_of_which_45_9_are_active():
    total, active = parameter_counts(M1)
    assert total / 1e9 == pytest.approx(456.1, abs=0.1)
    assert active / 1e9 == pytest.approx(45.9, abs=0.1)


@pytest.mark.parametrize("experts", [1, 4])
def test_the_count_is_that_of_the_model_itself(experts):
    config = ModelConfig(num_experts=experts, experts_per_token=1, head_dim=24, rotary_dim=12)
    assert parameter_counts(config)[0] == sum(p.numel() for p in HybridModel(config).parameters())


def test_flops_grow_with_the_window_in_softmax_layers_only():
    lightning = ModelConfig(block_types=["lightning"])
    assert training_flops(lightning, 1000, 64) == training_flops(lightning, 1000, 1024)
    assert training_flops(ModelConfig(), 1000, 64) < training_flops(ModelConfig(), 1000, 1024)
