import pytest
import torch
from tiny_models import random_tokens, small_model

from longstride.model.decoding import decode_step, empty_state, prefill

LAYOUTS = [["lightning", "softmax", "lightning"], ["softmax", "lightning"], ["lightning"] * 2]


@pytest.mark.parametrize("blocks", LAYOUTS)
def test_prefill_then_decode_equals_the_full_forward(blocks: list[str]) -> None:
    model, batch = small_model(block_types=blocks), random_tokens(3, 40)
    full = model(batch).hidden_BTD
    lengths = torch.tensor([1, 9, 17])
    state = prefill(model, batch[:, :17], lengths)
    rows = torch.arange(3)
    for _ in range(23):
        torch.testing.assert_close(
            state.hidden_RX, full[rows, state.lengths_R - 1], atol=2e-5, rtol=0
        )
        decode_step(model, state, batch[rows, state.lengths_R])


def test_decoding_token_by_token_equals_the_full_forward_at_4096_positions() -> None:
    model = small_model(block_types=["lightning", "softmax", "lightning"], lightning_chunk=64)
    batch = random_tokens(1, 4096)
    with torch.no_grad():
        full = model.logits(model(batch).hidden_BTD)[0]
    state = prefill(model, batch[:, :1], torch.tensor([1]))
    decoded = [model.logits(state.hidden_RX)[0]]
    for position in range(1, 4096):
        decode_step(model, state, batch[:, position])
        decoded.append(model.logits(state.hidden_RX)[0])
    torch.testing.assert_close(torch.stack(decoded).detach(), full, atol=1e-4, rtol=0)


def test_rows_copied_into_other_slots_continue_as_if_alone() -> None:
    model, batch = small_model(), random_tokens(2, 12)
    source = prefill(model, batch[:, :8], torch.tensor([8, 5]))
    state = empty_state(model, rows=4, slots=2)
    state.write(torch.tensor([0, 2, 3, 1]), source, torch.tensor([1, 0, 1, 1]))
    for step in range(4):
        decode_step(
            model,
            state,
            torch.stack([batch[r, step + n] for r, n in ((1, 5), (1, 5), (0, 8), (1, 5))]),
        )
    full = model(batch).hidden_BTD
    torch.testing.assert_close(state.hidden_RX[2], full[0, 11], atol=2e-5, rtol=0)
    for row in (0, 1, 3):
        torch.testing.assert_close(state.hidden_RX[row], full[1, 8], atol=2e-5, rtol=0)


def test_decoding_fewer_rows_leaves_the_others_alone() -> None:
    model, batch = small_model(), random_tokens(3, 6)
    state = prefill(model, batch, torch.tensor([6, 6, 6]))
    before = state.hidden_RX[2].clone(), state.layers[0].tensors[0][2].clone()
    decode_step(model, state, torch.tensor([1, 2]))
    assert torch.equal(state.hidden_RX[2], before[0])
    assert torch.equal(state.layers[0].tensors[0][2], before[1])


def test_the_lightning_state_stays_fp32_in_a_bf16_model() -> None:
    model = small_model().bfloat16()
    state = prefill(model, random_tokens(2, 6), torch.tensor([6, 3]))
    decode_step(model, state, torch.tensor([1, 2]))
    assert state.layers[0].tensors[0].dtype == torch.float32
    assert state.layers[1].tensors[0].dtype == torch.bfloat16
    assert empty_state(model, 1, 4).layers[0].tensors[0].dtype == torch.float32
