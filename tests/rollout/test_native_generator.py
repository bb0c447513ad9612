from itertools import chain

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sampling_models import VOCAB, full_logits, plain, policy

from longstride.errors import CheckpointError, DataError
from longstride.model.logprobs import token_logprobs
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import Sample, SamplingSettings

PROMPTS = [[1], [2, 3, 4, 5, 6, 7, 8], [9, 10, 11], [12] * 17, [13, 14]]
LAYOUTS = [("lightning", "softmax"), ("softmax", "lightning"), ("lightning",) * 3]


def near(first: list[list[Sample]], second: list[list[Sample]]) -> bool:
    """Equal tokens and reasons; log-probabilities equal but for rounding."""
    pairs = [pair for a, b in zip(first, second, strict=True) for pair in zip(a, b, strict=True)]
    return all(
        a.tokens == b.tokens
        and a.finish_reason == b.finish_reason
        and a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
        for a, b in pairs
    )


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


def test_equal_seeds_give_equal_samples_and_others_do_not() -> None:
    generator = NativeGenerator(policy())
    first = generator.generate(PROMPTS, 4, plain(), seed=7)
    assert first == generator.generate(PROMPTS, 4, plain(), seed=7)
    assert first != generator.generate(PROMPTS, 4, plain(), seed=8)


def test_samples_of_one_prompt_differ() -> None:
    group = NativeGenerator(policy()).generate([[1, 2]], 8, plain(), seed=0)[0]
    assert len({tuple(sample.tokens) for sample in group}) > 1


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


def test_a_sample_does_not_depend_on_its_neighbours() -> None:
    generator = NativeGenerator(policy())
    together = generator.generate(PROMPTS, 3, plain(), seed=0)
    neighbours = [PROMPTS[0], *reversed(PROMPTS[1:])]
    assert near(generator.generate(neighbours, 3, plain(), seed=0)[:1], together[:1])


def test_more_samples_keep_the_first_ones() -> None:
    generator = NativeGenerator(policy())
    few, many = (generator.generate(PROMPTS, n, plain(), seed=0) for n in (2, 5))
    assert near([group[:2] for group in many], few)


def test_long_samples_outgrow_every_buffer_correctly() -> None:
    model = policy()
    sample = NativeGenerator(model).generate([[1]], 1, plain(300), seed=0)[0][0]
    want = full_logits(model, [1], sample.tokens).log_softmax(-1)
    picked = want.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
    assert len(sample.tokens) == 300
    assert sample.logprobs == pytest.approx(picked.tolist(), abs=1e-4)


def test_greedy_takes_the_largest_logit_of_the_full_forward() -> None:
    model = policy()
    for prompt, group in zip(
        PROMPTS, NativeGenerator(model).generate(PROMPTS, 1, plain(temperature=0.0), 0), strict=True
    ):
        tokens = group[0].tokens
        assert full_logits(model, prompt, tokens).argmax(-1).tolist() == tokens


def test_top_p_samples_stay_inside_the_nucleus_and_report_its_probabilities() -> None:
    model, prompt = policy(), [3, 1, 4]
    group = NativeGenerator(model).generate([prompt], 20, plain(top_p=0.6), seed=0)[0]
    for sample in group:
        for logits, token, logp in zip(
            full_logits(model, prompt, sample.tokens), sample.tokens, sample.logprobs, strict=True
        ):
            probs = logits.softmax(-1)
            ranked = probs.argsort(descending=True).tolist()
            kept = 1
            while probs[ranked[:kept]].sum() < 0.6:
                kept += 1
            nucleus = ranked[:kept]
            assert token in nucleus
            want = (probs[token] / probs[nucleus].sum()).log().item()
            assert logp == pytest.approx(want, abs=1e-4)


def test_a_stop_token_ends_the_sample_and_belongs_to_it() -> None:
    stops = (0, 5, 9, 17)
    groups = NativeGenerator(policy()).generate(PROMPTS, 6, plain(8, stop_ids=stops), seed=0)
    samples = [sample for group in groups for sample in group]
    for sample in samples:
        hits = [index for index, token in enumerate(sample.tokens) if token in stops]
        if sample.finish_reason == "stop":
            assert hits == [len(sample.tokens) - 1]
        else:
            assert not hits and len(sample.tokens) == 8
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}


def test_stop_rules_only_cut_samples_short() -> None:
    generator = NativeGenerator(policy())
    free = generator.generate(PROMPTS, 4, plain(40), seed=0)
    cut = generator.generate(PROMPTS, 4, plain(40, stop_ids=(5, 9)), seed=0)
    for a, b in zip(chain(*free), chain(*cut), strict=True):
        assert a.tokens[: len(b.tokens)] == b.tokens


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


def test_a_window_of_one_token_gives_one_token() -> None:
    groups = NativeGenerator(policy()).generate(PROMPTS, 2, plain(1), seed=0)
    assert all(len(sample.tokens) == 1 for group in groups for sample in group)


def test_progress_counts_up_to_all_samples() -> None:
    seen: list[tuple[int, int]] = []
    NativeGenerator(policy(), max_batch=3).generate(
        PROMPTS, 2, plain(9), 0, lambda done, total: seen.append((done, total))
    )
    assert seen[-1] == (10, 10)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


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


def test_empty_prompts_and_foreign_tokens_are_refused_by_index() -> None:
    generator = NativeGenerator(policy())
    with pytest.raises(DataError, match="prompt 1 is empty"):
        generator.generate([[1], []], 1, plain(), seed=0)
    with pytest.raises(DataError, match=f"prompt 0 holds token {VOCAB}"):
        generator.generate([[1, VOCAB]], 1, plain(), seed=0)
    assert generator.generate([], 3, plain(), seed=0) == []


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
