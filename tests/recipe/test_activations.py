from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longstride.model.hybrid import HybridModel
from longstride.model.kernels import operations
from longstride.model.kernels.library import library
from longstride.model.logprobs import token_logprobs
from longstride.recipe.activations import Arithmetic, Batch, ends_saved, layer_saved
from schemas.model import ModelConfig


def saved_by_torch(config, batch, how):
    """Bytes of distinct storages that the real model saves for backward, weights apart."""
    model = HybridModel(config)
    model.initialise(0)
    if how.item == 2:
        model = model.to(torch.bfloat16)
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    found, kept = {}, []

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            found[storage.data_ptr()] = storage.nbytes()
            kept.append(tensor)
        return tensor

    shape = (batch.rows, batch.tokens)
    tokens = torch.randint(8, config.vocab_size, shape, generator=torch.Generator().manual_seed(0))
    segments = (torch.arange(batch.tokens) * 3 // batch.tokens).expand(shape).contiguous()
    usable = operations.usable if how.fused else lambda *tensors: False
    with (
        patch.object(operations, "usable", usable),
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
    ):
        output = model(tokens, segments if batch.packed else None)
        token_logprobs(model, output.hidden_BTD[:, :-1], tokens[:, 1:])
    return sum(found.values())


CONFIGS = st.builds(
    lambda kinds, heads, share, dim, rotary, experts, k, qk, bias, residual: ModelConfig(
        vocab_size=64, hidden_size=24, block_types=kinds, num_heads=heads,
        num_kv_heads=heads // share if heads % share == 0 else heads, head_dim=dim,
        rotary_dim=min(rotary, dim), num_experts=experts, experts_per_token=min(k, experts),
        expert_hidden_size=20, lightning_chunk=16, qk_norm=qk, qkv_bias=bias, residual=residual,
    ),
    kinds=st.lists(st.sampled_from(["lightning", "softmax"]), min_size=1, max_size=3),
    heads=st.sampled_from([1, 2, 4]), share=st.sampled_from([1, 2]), dim=st.sampled_from([4, 8]),
    rotary=st.sampled_from([0, 2, 4]), experts=st.sampled_from([1, 2, 4]), k=st.integers(1, 2),
    qk=st.booleans(), bias=st.booleans(), residual=st.sampled_from(["deepnorm", "prenorm"]),
)  # fmt: skip
BATCHES = st.builds(
    Batch, rows=st.integers(1, 3), tokens=st.integers(40, 100), packed=st.booleans()
)


# Without a C compiler there are no kernels.
ARITHMETICS = st.sampled_from(
    [Arithmetic(fused=library() is not None), Arithmetic(fused=False), Arithmetic(2, fused=False)]
)


@settings(max_examples=60, deadline=None)
@given(config=CONFIGS, batch=BATCHES, how=ARITHMETICS)
def test_the_tensors_saved_for_backward_are_counted_to_the_byte(config, batch, how):
    counted = ends_saved(config, batch, how)
    counted += sum(layer_saved(config, kind, batch, how) for kind in config.block_types)
    # Beside them stand a few scalars and vectors of E elements of the load-balancing loss.
    assert counted == pytest.approx(saved_by_torch(config, batch, how), abs=1024, rel=0)
