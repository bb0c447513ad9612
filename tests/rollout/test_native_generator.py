import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_models import PROMPTS, full_logits, near, plain, policy

from longstride.errors import CheckpointError
from longstride.model.logprobs import token_logprobs
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings

LAYOUTS = [("lightning", "softmax"), ("softmax", "lightning"), ("lightning",) * 3]


@pytest.mark.parametrize("blocks", LAYOUTS)
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_equal_the_trainers(blocks: tuple[str, ...], temperature: float) -> None:
    model = policy(blocks=blocks)
    groups = NativeGenerator(model).generate(PROMPTS, 3, plain(temperature=temperature), seed=0)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for sample in group:
            row = torch.tensor([prompt + sample.tokens])
            hidden = model(row).hidden_BTD
            logp, _ = token_logprobs(model, hidden[:, :-1], row[:, 1:], temperature)
            assert sample.logprobs == pytest.approx(logp[0, len(prompt) - 1 :].tolist(), abs=1e-4)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 40), st.integers(1, 60), st.integers(0, 5), st.integers(1, 5))
def test_batch_size_refills_and_dropped_rows_change_nothing(
    max_batch: int, prefill_tokens: int, seed: int, samples: int
) -> None:
    model, rules = policy(), plain(30, stop_ids=(0, 1, 2, 3))
    want = NativeGenerator(model, max_batch=1000).generate(PROMPTS, samples, rules, seed)
    small = NativeGenerator(model, max_batch, prefill_tokens)
    got = small.generate(PROMPTS, samples, rules, seed)
    assert near(got, want)


def test_the_repetition_rule_ends_a_run_of_near_certain_tokens() -> None:
    model = policy()
    model.head.weight.data *= 100.0
    rules = plain(60, repetition_run=5, repetition_threshold=0.99)
    for group in NativeGenerator(model).generate(PROMPTS, 2, rules, seed=0):
        for sample in group:
            certain = [logp > torch.tensor(0.99).log().item() for logp in sample.logprobs]
            assert sample.finish_reason == "repetition"
            assert all(certain[-5:])
            assert not any(all(certain[i - 5 : i]) for i in range(5, len(certain)))


def test_top_p_does_not_make_tokens_look_certain() -> None:
    """A nucleus of one token has probability 1 after renormalising; the model does not."""
    rules = plain(30, top_p=0.01, repetition_run=2, repetition_threshold=0.99)
    group = NativeGenerator(policy()).generate([[1, 2]], 4, rules, seed=0)[0]
    assert all(sample.logprobs == pytest.approx([0.0] * 30, abs=1e-6) for sample in group)
    assert all(sample.finish_reason == "length" for sample in group)


def test_generation_leaves_weights_trainable_and_the_global_generator_alone() -> None:
    model = policy()
    torch.manual_seed(1)
    expected = torch.rand(1)
    torch.manual_seed(1)
    NativeGenerator(model).generate(PROMPTS, 2, plain(), seed=0)
    assert torch.equal(torch.rand(1), expected)
    model(torch.tensor([[1, 2]])).hidden_BTD.sum().backward()
    assert model.embed.weight.grad is not None


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_weights_are_reported_as_a_checkpoint_problem(value: float) -> None:
    model = policy()
    model.head.weight.data[3] = value
    with pytest.raises(CheckpointError, match=r"prompt 0, sample 0, new token 0: .* corrupt"):
        NativeGenerator(model).generate(PROMPTS, 1, plain(), seed=0)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_new_tokens", 0), ("temperature", -1.0), ("temperature", float("nan")), ("top_p", 0.0),
     ("top_p", 1.5), ("repetition_run", -1), ("repetition_threshold", 2.0)],
)  # fmt: skip
def test_meaningless_settings_are_refused_by_name(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        SamplingSettings(**({"max_new_tokens": 4} | {field: value}))


def test_a_bf16_policy_samples_with_fp32_logprobs_near_its_own_forward() -> None:
    model = policy().bfloat16()
    sample = NativeGenerator(model).generate([[1, 2]], 1, plain(20), seed=0)[0][0]
    want = full_logits(model, [1, 2], sample.tokens).log_softmax(-1)
    picked = want.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
    assert want.dtype == torch.float32
    assert (torch.tensor(sample.logprobs) - picked).abs().mean() < 0.1
