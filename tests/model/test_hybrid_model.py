import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tiny_models import random_tokens, small_config, small_model

from longstride.model.hybrid import HybridModel
from longstride.model.layout import restarting_positions

LAYOUTS = [["lightning", "softmax"], ["softmax", "lightning"], ["softmax"], ["lightning"] * 3]


def segments_of(lengths: list[int], width: int) -> torch.Tensor:
    """One packed row: documents of these lengths, then padding."""
    row = [index for index, length in enumerate(lengths) for _ in range(length)]
    return torch.tensor([row + [-1] * (width - len(row))])


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(1, 20), min_size=1, max_size=6), st.integers(0, 9))
def test_packed_documents_equal_separate_ones(lengths: list[int], padding: int) -> None:
    model = small_model(block_types=["lightning", "softmax", "lightning"])
    width = sum(lengths) + padding
    batch = random_tokens(1, width)
    packed = model(batch, segments_of(lengths, width)).hidden_BTD
    start = 0
    for length in lengths:
        part = slice(start, start + length)
        torch.testing.assert_close(
            packed[:, part], model(batch[:, part]).hidden_BTD, atol=2e-5, rtol=0
        )
        start += length


def test_packed_gradients_equal_separate_ones() -> None:
    model, lengths, batch = small_model(), [13, 3, 9], random_tokens(1, 25)
    model(batch, segments_of(lengths, 25)).hidden_BTD.square().sum().backward()
    packed = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    for part in batch.split(lengths, dim=1):
        model(part).hidden_BTD.square().sum().backward()
    for name, p in model.named_parameters():
        if packed[name] is not None:
            torch.testing.assert_close(packed[name], p.grad, atol=2e-3, rtol=1e-3)


@pytest.mark.parametrize("blocks", LAYOUTS)
def test_right_padding_changes_nothing(blocks: list[str]) -> None:
    model, batch = small_model(block_types=blocks), random_tokens(1, 30)
    alone = model(batch[:, :17]).hidden_BTD
    padded = model(batch, segments_of([17], 30)).hidden_BTD[:, :17]
    torch.testing.assert_close(padded, alone, atol=2e-5, rtol=0)


def test_a_token_cannot_see_the_future() -> None:
    model, batch = small_model(), random_tokens(1, 30)
    changed = batch.clone()
    changed[0, 20] = (changed[0, 20] + 1) % 40
    a, b = model(batch).hidden_BTD, model(changed).hidden_BTD
    torch.testing.assert_close(a[:, :20], b[:, :20], atol=1e-6, rtol=0)
    assert (a[:, 20:] - b[:, 20:]).abs().amax(-1).min() > 1e-3


@pytest.mark.parametrize("chunk", [1, 3, 16, 64])
def test_chunk_size_changes_nothing(chunk: int) -> None:
    batch, segments = random_tokens(1, 37), segments_of([11, 20], 37)
    want = small_model(lightning_chunk=37)(batch, segments).hidden_BTD
    got = small_model(lightning_chunk=chunk)(batch, segments).hidden_BTD
    torch.testing.assert_close(got[:, :31], want[:, :31], atol=2e-5, rtol=0)


def test_positions_restart_with_every_document() -> None:
    positions = restarting_positions(segments_of([3, 1, 2], 8))
    assert positions.tolist() == [[0, 1, 2, 0, 0, 1, 0, 1]]


def test_derived_positions_equal_given_ones() -> None:
    model, segments, batch = small_model(), segments_of([7, 5], 12), random_tokens(1, 12)
    derived = model(batch, segments).hidden_BTD
    assert torch.equal(derived, model(batch, segments, restarting_positions(segments)).hidden_BTD)


def test_rows_as_stored_in_int32_give_the_same_result() -> None:
    model, segments, batch = small_model(), segments_of([7, 5], 14), random_tokens(1, 14)
    stored = (batch.int(), segments.int(), restarting_positions(segments).int())
    assert torch.equal(model(*stored).hidden_BTD, model(batch, segments).hidden_BTD)


def test_lightning_state_decay_router_and_head_stay_fp32_after_a_cast() -> None:
    model = small_model().to(torch.bfloat16)
    by_type = {name: p.dtype for name, p in model.named_parameters()}
    assert by_type["head.weight"] == by_type["blocks.0.mlp.router.weight"] == torch.float32
    assert by_type["blocks.0.attention.qkvg_proj.weight"] == torch.bfloat16
    assert model.blocks[0].attention.slopes_H.dtype == torch.float32
    hidden = model(random_tokens(1, 9)).hidden_BTD
    assert hidden.dtype == torch.bfloat16
    assert model.logits(hidden).dtype == torch.float32


def test_a_cast_does_not_round_what_stays_fp32() -> None:
    model = small_model()
    before = model.head.weight.clone()
    assert torch.equal(model.bfloat16().float().head.weight, before)


def test_bf16_stays_near_fp32_over_a_long_row() -> None:
    batch, model = random_tokens(1, 300), small_model()
    want = model.logits(model(batch).hidden_BTD)
    got = model.bfloat16().logits(model(batch).hidden_BTD)
    assert torch.corrcoef(torch.stack([want.flatten(), got.flatten()]))[0, 1] > 0.99


def test_autocast_leaves_the_head_in_fp32() -> None:
    model, batch = small_model(), random_tokens(1, 9)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = model(batch).hidden_BTD
        logits = model.logits(hidden)
    assert logits.dtype == torch.float32
    assert torch.equal(logits, model.logits(hidden.float()))


def test_equal_seeds_give_equal_weights_and_leave_the_global_generator_alone() -> None:
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    a, b, c = small_model(3), small_model(3), small_model(4)
    assert torch.equal(torch.rand(1), expected)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.head.weight, c.head.weight)


def test_initial_spread_follows_deepnorm() -> None:
    config = small_config(hidden_size=64, head_dim=32, rotary_dim=8, init_std=0.02)
    model = HybridModel(config)
    model.initialise(0)
    gain = (8 * 3) ** -0.25
    query_key_value = model.blocks[0].attention.qkvg_proj.weight[: 3 * 128].view(4, 3, 32, 64)
    assert query_key_value[:, 0].std().item() == pytest.approx(0.02, rel=0.05)
    assert query_key_value[:, 2].std().item() == pytest.approx(0.02 * gain, rel=0.05)
    assert model.blocks[1].attention.out_proj.weight.std().item() == pytest.approx(
        0.02 * gain, rel=0.05
    )
    assert model.blocks[2].mlp.w2.std().item() == pytest.approx(0.02 * gain, rel=0.05)


@pytest.mark.parametrize("blocks", LAYOUTS)
def test_every_parameter_learns(blocks: list[str]) -> None:
    model = small_model(block_types=blocks)
    run = model(random_tokens(2, 20))
    (model.logits(run.hidden_BTD).logsumexp(-1).sum() + run.aux_loss).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0, name


def test_one_expert_is_a_dense_mlp_without_balancing_loss() -> None:
    model = small_model(num_experts=1, experts_per_token=1)
    assert not any("router" in name for name, _ in model.named_parameters())
    assert model(random_tokens(2, 5)).aux_loss.item() == 0.0


def test_a_few_steps_of_training_learn_a_repeating_text() -> None:
    from longstride.model.logprobs import token_logprobs

    model = small_model(init_std=0.1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    batch = torch.arange(12).repeat(4, 3)
    losses = []
    for _ in range(25):
        logp, _ = token_logprobs(model, model(batch).hidden_BTD[:, :-1], batch[:, 1:])
        optimizer.zero_grad()
        (-logp.mean()).backward()
        optimizer.step()
        losses.append(-logp.mean().item())
    assert losses[-1] < 0.1 * losses[0]
