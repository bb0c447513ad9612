"""Activation checkpointing changes memory only; bf16 arithmetic leaves fp32 weights and head."""

import pytest
import torch
from training_parts import MODEL

from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs
from longstride.training.arithmetic import checkpoint_activations, compute_in


def fresh_model():
    model = HybridModel(MODEL)
    model.initialise(3)
    return model


def gradients(model, segments=True):
    tokens_BT = torch.randint(0, 64, (3, 20), generator=torch.Generator().manual_seed(0))
    segments_BT = torch.tensor([[0] * 7 + [1] * 8 + [-1] * 5] * 3) if segments else None
    output = model(tokens_BT, segments_BT)
    logp_BT, _ = token_logprobs(model, output.hidden_BTD[:, :-1], tokens_BT[:, 1:])
    loss = -logp_BT.mean() + 0.01 * output.aux_loss
    loss.backward()
    return float(loss.detach()), [p.grad for p in model.parameters()]


@pytest.mark.parametrize("segments", [True, False])
def test_checkpointed_blocks_give_the_same_loss_and_gradients_to_the_last_bit(segments):
    plain, kept_less = fresh_model(), fresh_model()
    checkpoint_activations(kept_less)
    loss, expected = gradients(plain, segments)
    other, found = gradients(kept_less, segments)
    assert other == loss
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def test_checkpointed_blocks_keep_no_more_than_their_inputs():
    def kept(model):
        sizes = {}
        weights = {p.data_ptr() for p in model.parameters()}

        def note(tensor):
            if tensor.data_ptr() not in weights:
                sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
            model(torch.zeros(4, 64, dtype=torch.long))
        return sum(sizes.values())

    plain, kept_less = fresh_model(), fresh_model()
    checkpoint_activations(kept_less)
    inputs = MODEL.num_layers * 4 * 64 * MODEL.hidden_size * 4
    assert kept(kept_less) + inputs < 0.3 * kept(plain)


def test_bf16_arithmetic_keeps_fp32_weights_names_and_gradients():
    model = fresh_model()
    names = list(model.state_dict())
    compute_in(model, torch.bfloat16)
    loss, found = gradients(model)
    exact, expected = gradients(fresh_model())
    assert loss == pytest.approx(exact, rel=1e-2) and loss != exact
    assert list(model.state_dict()) == names
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert {g.dtype for g in found} == {torch.float32}
    ours, theirs = (torch.cat([g.flatten() for g in gs]) for gs in (found, expected))
    assert torch.nn.functional.cosine_similarity(ours, theirs, dim=0) > 0.99


def test_bf16_arithmetic_is_that_of_a_bf16_model_with_fp32_head_and_router():
    ours, theirs = fresh_model(), fresh_model().to(torch.bfloat16)
    compute_in(ours, torch.bfloat16)
    tokens_BT = torch.arange(20)[None]
    with torch.no_grad():
        found, expected = ours(tokens_BT), theirs(tokens_BT)
        assert found.hidden_BTD.dtype == torch.bfloat16
        assert torch.equal(found.hidden_BTD, expected.hidden_BTD)
        logits = ours.logits(found.hidden_BTD)
        assert logits.dtype == torch.float32
        assert torch.equal(logits, theirs.logits(expected.hidden_BTD))
