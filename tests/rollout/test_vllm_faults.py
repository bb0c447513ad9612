"""A server that is slow, breaks or lies ends in an error that says what happened."""

import threading
import time

import pytest
import torch
from fake_vllm import FakeVllm
from generators_under_test import on_double
from sampling_models import dense_policy, plain

from longstride.errors import CheckpointError, DataError, GeneratorError, UsageError
from longstride.rollout.protocol import SamplingSettings


@pytest.fixture
def synced(fake: FakeVllm, tmp_path):
    """A generator that works, so far."""
    with on_double(fake, tmp_path) as generator:
        generator.sync(dense_policy(), 0)
        fake.calls.clear()
        yield generator


@pytest.fixture
def impatient(synced):
    """The same with little time left for everything."""
    synced.config.generate_seconds = synced.config.reload_seconds = 0.6
    return synced


def change_choice(fake, **values):
    """Let every completion differ from what it should be."""

    def change(path, answer):
        if path.startswith("/v1"):
            answer["choices"][0].update(values)
        return answer

    fake.change = change


def test_a_slow_answer_ends_at_the_limit_and_names_what_was_awaited(fake, impatient):
    fake.delay = 5.0
    began = time.monotonic()
    with pytest.raises(
        GeneratorError, match=r"waited 0\.6 s for 4 samples of up to 12 tokens .*generate_seconds"
    ):
        impatient.generate([[1], [2]], 2, plain(), 0)
    assert time.monotonic() - began < 3.0


def test_a_slow_reload_names_its_version_and_its_setting(fake, impatient):
    fake.delay = 5.0
    with pytest.raises(GeneratorError, match=r"load the weights of version 1.*reload_seconds"):
        impatient.sync(dense_policy(), 1)


def test_a_prefix_cache_that_is_busy_for_a_moment_is_waited_for(fake, synced):
    fake.refuse_resets = 2
    synced.sync(dense_policy(1), 1)
    assert [path for path, _ in fake.calls].count("/reset_prefix_cache") == 3


def test_a_prefix_cache_that_stays_busy_ends_at_the_limit(fake, impatient):
    fake.refuse_resets = 10_000
    with pytest.raises(GeneratorError, match=r"waited 0\.6 s for vLLM to load"):
        impatient.sync(dense_policy(1), 1)


@pytest.mark.parametrize("status", [400, 500, 503])
def test_an_error_status_is_shown_with_the_servers_own_words(fake, synced, status):
    fake.status, fake.broken = status, b'{"error": {"message": "engine core is dead"}}'
    with pytest.raises(GeneratorError, match=rf"status {status}: .*engine core is dead"):
        synced.generate([[1]], 1, plain(), 0)


@pytest.mark.parametrize("text", [b"<html>proxy</html>", b"", b"[1, 2]", b'"fine"'])
def test_an_answer_that_is_no_json_object_is_shown(fake, synced, text):
    fake.broken = text
    with pytest.raises(GeneratorError, match=r"not JSON|not an object"):
        synced.generate([[1]], 1, plain(), 0)


def test_an_error_inside_a_good_status_is_an_error(fake, synced):
    fake.broken = b'{"error": {"message": "no such model"}}'
    with pytest.raises(GeneratorError, match="no such model"):
        synced.generate([[1]], 1, plain(), 0)


def test_a_server_that_hangs_up_is_reported_at_once(fake, synced):
    fake.change = lambda path, answer: None
    with pytest.raises(GeneratorError, match=r"connection to vLLM at http://\S+ broke"):
        synced.generate([[1]], 1, plain(), 0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"token_ids": [1, 2]}, "2 tokens with 12 log-probabilities"),
        ({"token_ids": None}, "not a list of integers"),
        ({"token_ids": ["1"] * 12}, "not a list of integers"),
        ({"token_ids": [1] * 11 + [999]}, "outside the vocabulary of 24: sample 0 of prompt 0"),
        ({"logprobs": None}, "no choice with token_ids and logprobs"),
        ({"logprobs": {"token_logprobs": None}}, "12 tokens with no log-probabilities"),
        ({"finish_reason": "abort"}, "ended by 'abort'"),
        ({"finish_reason": "stop"}, "ended by 'stop'"),
    ],
)
def test_an_answer_that_cannot_be_right_is_refused(fake, synced, values, message):
    change_choice(fake, **values)
    with pytest.raises(GeneratorError, match=message):
        synced.generate([[1]], 2, plain(), 0)


def test_a_sample_that_goes_on_behind_a_stop_token_is_refused(fake, synced):
    change_choice(fake, token_ids=[3, 4], logprobs={"token_logprobs": [-1.0, -1.0]})
    with pytest.raises(GeneratorError, match=r"2 tokens, .* stop tokens \[3\] that cannot be"):
        synced.generate([[1]], 1, plain(2, stop_ids=(3,)), 0)


def test_too_many_choices_are_refused(fake, synced):
    fake.change = lambda path, answer: {"choices": answer["choices"] * 2}
    with pytest.raises(GeneratorError, match="no choice with token_ids"):
        synced.generate([[1]], 1, plain(), 0)


def test_more_tokens_than_asked_for_are_refused(fake, synced):
    change_choice(fake, token_ids=[1] * 13, logprobs={"token_logprobs": [-1.0] * 13})
    with pytest.raises(GeneratorError, match="13 tokens"):
        synced.generate([[1]], 1, plain(), 0)


@pytest.mark.parametrize("value", [None, float("nan"), -9999.0])
def test_logprobs_that_are_no_numbers_are_a_checkpoint_problem(fake, synced, value):
    change_choice(fake, logprobs={"token_logprobs": [-1.0] * 11 + [value]})
    with pytest.raises(CheckpointError, match="NaN or infinite"):
        synced.generate([[1]], 1, plain(), 0)


def test_prompt_logprobs_that_are_missing_are_refused(fake, synced):
    change_choice(fake, prompt_logprobs=[None, {"5": {"logprob": -1.0}}])
    with pytest.raises(GeneratorError, match=r"every one of 192 prompt tokens"):
        synced.sync(dense_policy(), 1)


def test_a_stream_that_breaks_off_is_no_sample(fake, synced):
    fake.events = 1
    with pytest.raises(GeneratorError, match="broke while waiting"):
        synced.generate([[1]], 1, plain(100, repetition_run=50), 0)


def test_a_repeating_sample_is_aborted_long_before_its_window_ends(fake, tmp_path):
    model = dense_policy()
    with torch.no_grad():
        model.head.weight.mul_(100.0)
    rules = plain(330, repetition_run=5, repetition_threshold=0.9)
    with on_double(fake, tmp_path, probe_tolerance=0.1) as generator:
        generator.sync(model, 0)
        (sample,) = generator.generate([[1]], 1, rules, 0)[0]
    assert sample.finish_reason == "repetition" and len(sample.tokens) < 66
    time.sleep(0.2)
    assert fake.events_sent < 6


def test_the_first_failure_ends_the_whole_batch(fake, synced):
    """Twenty requests, one of which fails: the others are not waited for."""
    calls = iter(range(1000))

    def one_fails(path, answer):
        if next(calls) == 5:
            return {"error": {"message": "planted"}}
        time.sleep(0.3)
        return answer

    fake.change = one_fails
    threads = threading.active_count()
    with pytest.raises(GeneratorError, match="planted"):
        synced.generate([[1]], 20, plain(4), 0)
    deadline = time.monotonic() + 5
    while threading.active_count() > threads and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [t for t in threading.enumerate() if t.name.startswith("vllm-request")]
    fake.change = None
    assert len(synced.generate([[1]], 3, plain(4), 0)[0]) == 3


def test_prompts_that_do_not_fit_are_refused_before_anything_is_sent(fake, synced):
    with pytest.raises(DataError, match=r"prompt 1 has 300 tokens, which with 85 new .* 384"):
        synced.generate([[1], [2] * 300], 1, plain(85), 0)
    assert fake.calls == []


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"temperature": 0.001}, r"temperature=0\.001 lies outside 0\.01 to 2"),
        ({"temperature": 2.5}, r"temperature=2\.5 lies outside"),
        ({"top_p": 0.9, "repetition_run": 3}, r"repetition_run=3 with top_p=0\.9"),
    ],
)
def test_settings_that_vllm_would_change_silently_are_refused(synced, rules, message):
    with pytest.raises(UsageError, match=message):
        synced.generate([[1]], 1, plain(**rules), 0)


def test_nothing_is_sampled_before_the_first_sync(fake, tmp_path):
    with (
        on_double(fake, tmp_path) as generator,
        pytest.raises(GeneratorError, match="call sync first"),
    ):
        generator.generate([[1]], 1, plain(), 0)


def test_requests_hold_exactly_what_sampling_needs(fake, synced):
    synced.generate([[5, 6]], 2, SamplingSettings(4, 0.5, 0.9, (3,)), 11)
    bodies = [body for _, body in fake.calls]
    assert all(
        body["prompt"] == [5, 6]
        and (body["max_tokens"], body["temperature"], body["top_p"]) == (4, 0.5, 0.9)
        and body["stop_token_ids"] == [3]
        and body["ignore_eos"] is True
        for body in bodies
    )
    assert len({body["seed"] for body in bodies}) == 2
    assert all(0 <= body["seed"] < 2**63 for body in bodies)
