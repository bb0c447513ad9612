"""What every generator promises, whoever samples."""

from itertools import chain

import pytest
import torch
from generators_under_test import Subject
from sampling_models import PROMPTS, TOLERANCE, VOCAB, full_logits, near, plain

from longstride.errors import DataError
from longstride.model.logprobs import token_logprobs


def test_every_prompt_gets_its_samples_in_order_and_they_differ(subject: Subject) -> None:
    groups = subject.generator.generate(PROMPTS, 4, plain(), seed=0)
    assert [len(group) for group in groups] == [4] * len(PROMPTS)
    assert all(len({tuple(sample.tokens) for sample in group}) > 1 for group in groups)


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
def test_logprobs_are_those_that_the_trainer_recomputes(
    subject: Subject, temperature: float
) -> None:
    groups = subject.generator.generate(PROMPTS, 3, plain(temperature=temperature), seed=0)
    for prompt, group in zip(PROMPTS, groups, strict=True):
        for sample in group:
            row = torch.tensor([prompt + sample.tokens])
            hidden = subject.model(row).hidden_BTD
            logp, _ = token_logprobs(subject.model, hidden[:, :-1], row[:, 1:], temperature)
            want = logp[0, len(prompt) - 1 :].tolist()
            assert sample.logprobs == pytest.approx(want, abs=TOLERANCE)


def test_long_samples_keep_exact_logprobs(subject: Subject) -> None:
    sample = subject.generator.generate([[1]], 1, plain(300), seed=0)[0][0]
    want = full_logits(subject.model, [1], sample.tokens).log_softmax(-1)
    picked = want.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
    assert len(sample.tokens) == 300
    assert sample.logprobs == pytest.approx(picked.tolist(), abs=TOLERANCE)


def test_many_long_prompts_at_once_are_read_in_full(subject: Subject) -> None:
    """More prompt tokens than a server reads in one step."""
    prompts = [[(7 * row + 5 * column) % VOCAB for column in range(300)] for row in range(16)]
    groups = subject.generator.generate(prompts, 1, plain(3), seed=0)
    for prompt, (sample,) in zip(prompts, groups, strict=True):
        logp = full_logits(subject.model, prompt, sample.tokens).log_softmax(-1)
        picked = logp.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0]
        assert sample.logprobs == pytest.approx(picked.tolist(), abs=TOLERANCE)


def test_equal_seeds_give_equal_samples_and_others_do_not(subject: Subject) -> None:
    first = subject.generator.generate(PROMPTS, 4, plain(), seed=7)
    assert near(subject.generator.generate(PROMPTS, 4, plain(), seed=7), first)
    other = subject.generator.generate(PROMPTS, 4, plain(), seed=8)
    assert [s.tokens for s in chain(*other)] != [s.tokens for s in chain(*first)]


def test_a_sample_depends_on_its_indices_and_not_on_its_neighbours(subject: Subject) -> None:
    together = subject.generator.generate(PROMPTS, 3, plain(), seed=0)
    neighbours = [PROMPTS[0], *reversed(PROMPTS[1:])]
    assert near(subject.generator.generate(neighbours, 3, plain(), seed=0)[:1], together[:1])
    more = subject.generator.generate(PROMPTS, 5, plain(), seed=0)
    assert near([group[:3] for group in more], together)


def test_greedy_takes_the_largest_logit_and_reports_temperature_one(subject: Subject) -> None:
    groups = subject.generator.generate(PROMPTS, 1, plain(temperature=0.0), 0)
    for prompt, (sample,) in zip(PROMPTS, groups, strict=True):
        logp = full_logits(subject.model, prompt, sample.tokens).log_softmax(-1)
        assert logp.argmax(-1).tolist() == sample.tokens
        assert sample.logprobs == pytest.approx(logp.max(-1).values.tolist(), abs=TOLERANCE)


@pytest.mark.parametrize("temperature", [1.0, 0.8])
def test_top_p_samples_stay_inside_the_nucleus_and_report_its_probabilities(
    subject: Subject, temperature: float
) -> None:
    prompt, rules = [3, 1, 4], plain(top_p=0.6, temperature=temperature)
    for sample in subject.generator.generate([prompt], 20, rules, seed=0)[0]:
        rows = full_logits(subject.model, prompt, sample.tokens) / temperature
        for logits, token, logp in zip(rows, sample.tokens, sample.logprobs, strict=True):
            probs = logits.softmax(-1)
            ranked = probs.argsort(descending=True).tolist()
            kept = 1
            while probs[ranked[:kept]].sum() < 0.6:
                kept += 1
            nucleus = ranked[:kept]
            assert token in nucleus
            want = (probs[token] / probs[nucleus].sum()).log().item()
            assert logp == pytest.approx(want, abs=TOLERANCE)


def test_a_stop_token_ends_the_sample_and_belongs_to_it(subject: Subject) -> None:
    stops = (0, 5, 9, 17)
    groups = subject.generator.generate(PROMPTS, 6, plain(8, stop_ids=stops), seed=0)
    samples = list(chain(*groups))
    for sample in samples:
        hits = [index for index, token in enumerate(sample.tokens) if token in stops]
        if sample.finish_reason == "stop":
            assert hits == [len(sample.tokens) - 1]
        else:
            assert not hits and len(sample.tokens) == 8
    assert {sample.finish_reason for sample in samples} == {"stop", "length"}


def test_stop_rules_only_cut_samples_short(subject: Subject) -> None:
    free = subject.generator.generate(PROMPTS, 4, plain(40), seed=0)
    cut = subject.generator.generate(PROMPTS, 4, plain(40, stop_ids=(5, 9)), seed=0)
    for a, b in zip(chain(*free), chain(*cut), strict=True):
        assert a.tokens[: len(b.tokens)] == b.tokens


def test_a_stop_token_at_the_end_of_the_window_is_a_stop(subject: Subject) -> None:
    free = subject.generator.generate(PROMPTS, 2, plain(5), seed=0)
    last = free[1][0].tokens[-1]
    cut = subject.generator.generate(PROMPTS, 2, plain(5, stop_ids=(last,)), seed=0)[1][0]
    assert cut.finish_reason == "stop"
    assert cut.tokens == free[1][0].tokens[: free[1][0].tokens.index(last) + 1]


def test_the_repetition_rule_ends_a_run_of_likely_tokens_where_it_is_complete(
    subject: Subject,
) -> None:
    free = subject.generator.generate(PROMPTS, 2, plain(90), seed=0)
    rules = plain(90, repetition_run=3, repetition_threshold=0.3)
    ruled = subject.generator.generate(PROMPTS, 2, rules, seed=0)
    for a, b in zip(chain(*free), chain(*ruled), strict=True):
        likely = (torch.tensor(a.logprobs).exp() > 0.3).tolist()
        runs = [end for end in range(3, 91) if all(likely[end - 3 : end])]
        assert len(b.tokens) == (runs[0] if runs else 90)
        assert b.finish_reason == ("repetition" if runs else "length")
        assert b.tokens == a.tokens[: len(b.tokens)]
    assert "repetition" in {sample.finish_reason for sample in chain(*ruled)}


def test_a_window_of_one_token_gives_one_token(subject: Subject) -> None:
    groups = subject.generator.generate(PROMPTS, 2, plain(1), seed=0)
    assert all(len(sample.tokens) == 1 for sample in chain(*groups))


def test_progress_counts_up_to_all_samples(subject: Subject) -> None:
    seen: list[tuple[int, int]] = []
    subject.generator.generate(PROMPTS, 2, plain(9), 0, lambda *counts: seen.append(counts))
    assert seen[-1] == (10, 10)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_samples_carry_the_version_of_the_last_sync(subject: Subject) -> None:
    before = subject.generator.generate([[1]], 2, plain(3), 0)
    assert [sample.policy_version for sample in before[0]] == [7, 7]
    subject.generator.sync(subject.model, 8)
    assert subject.generator.generate([[1]], 1, plain(3), 0)[0][0].policy_version == 8


def test_new_weights_are_sampled_from_after_a_sync(subject: Subject) -> None:
    with torch.no_grad():
        for parameter in subject.model.parameters():
            parameter.mul_(1.1)
    report = subject.generator.sync(subject.model, 9)
    assert report.version == 9 and report.probe_difference < TOLERANCE
    test_logprobs_are_those_that_the_trainer_recomputes(subject, 1.0)


def test_empty_prompts_and_foreign_tokens_are_refused_by_index(subject: Subject) -> None:
    generator = subject.generator
    with pytest.raises(DataError, match="prompt 1 is empty"):
        generator.generate([[1], []], 1, plain(), seed=0)
    with pytest.raises(DataError, match=f"prompt 0 holds token {VOCAB}"):
        generator.generate([[1, VOCAB]], 1, plain(), seed=0)
    with pytest.raises(ValueError, match="samples_per_prompt=0"):
        generator.generate([[1]], 0, plain(), seed=0)
    assert generator.generate([], 3, plain(), seed=0) == []
