"""The judge's endpoint fails in every way that endpoints fail, and the key stays unseen."""

import logging
import pickle
import socket
import time
import traceback
from pathlib import Path

import pytest
from scripted_judge import (
    completion,
    config,
    drip,
    hang_up,
    honest,
    judging,
    listing,
    served,
    submission,
)

from longstride.errors import UsageError
from longstride.rewards.generative.endpoint import ChatEndpoint
from longstride.rewards.generative.judge import ModelJudge
from longstride.rewards.protocol import NotJudged, Score

CANARY = "sk-canary-0123456789abcdef"
KEYED = {"api_key_variable": "JUDGE_KEY"}


def failing(times, reply):
    """A judge that is honest after so many failures."""
    return lambda asked: reply if asked.number < times else honest(asked)


def test_the_request_is_what_an_openai_compatible_server_expects(tmp_path):
    sampling = {"temperature": 0.3, "extra": {"chat_template_kwargs": {"enable_thinking": False}}}
    with served(honest) as server, judging(server, tmp_path, sampling=sampling) as judge:
        judge.judge(submission(listing(3)))
    (request,) = server.requests
    assert request["path"] == "/v1/chat/completions"
    assert (request["model"], request["temperature"], request["top_p"]) == ("judge", 0.3, 0.95)
    assert request["chat_template_kwargs"] == {"enable_thinking": False}
    assert [message["role"] for message in request["messages"]] == ["user"]
    assert "Authorization" not in server.headers[0]


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_a_burst_of_errors_that_may_pass_is_waited_out(tmp_path, status):
    with (
        served(failing(3, (status, {}, b"busy"))) as server,
        judging(server, tmp_path) as judge,
    ):
        assert judge.judge(submission(listing(11))).value == 1.0
        assert judge.metrics()["judge/calls"] == 4.0


def test_a_connection_that_breaks_is_tried_again(tmp_path):
    with served(failing(2, hang_up)) as server, judging(server, tmp_path) as judge:
        assert judge.judge(submission(listing(11))).value == 1.0
    assert server.calls == 3


def test_the_server_may_say_how_long_to_wait(tmp_path):
    persona = failing(1, (429, {"Retry-After": "1"}, b""))
    with served(persona) as server, judging(server, tmp_path) as judge:
        began = time.monotonic()
        judge.judge(submission(listing(11)))
        assert time.monotonic() - began >= 1.0
    assert server.calls == 2


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "error"), (422, "error"), (401, "unavailable"),
                           (404, "unavailable"), (301, "error")],
)  # fmt: skip
def test_a_request_that_is_wrong_is_not_tried_again(tmp_path, status, reason):
    persona = failing(99, (status, {"Location": "http://127.0.0.1:9/"}, b"no"))
    with served(persona) as server, judging(server, tmp_path) as judge:
        found = judge.judge(submission(listing(11)))
    assert (found.reason, server.calls) == (reason, 1)
    assert f"status {status}" in found.detail


def test_an_endpoint_that_stays_ill_is_unavailable(tmp_path):
    persona = failing(99, (503, {}, b""))
    with served(persona) as server, judging(server, tmp_path, limits={"retries": 2}) as judge:
        found = judge.judge(submission(listing(11)))
    assert (found.reason, server.calls) == ("unavailable", 3)
    assert found.detail == "the endpoint answered with status 503, after 3 tries"


def test_an_endpoint_that_is_down_is_unavailable(tmp_path):
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{probe.getsockname()[1]}"
        with judging(url, tmp_path, limits={"retries": 1}) as judge:
            found = judge.judge_all([submission(listing(n)) for n in (1, 2)])
    assert [f.reason for f in found] == ["unavailable", "unavailable"]
    assert "ConnectionRefusedError" in found[0].detail


@pytest.mark.parametrize(
    "raw", [b"not json", b"[]", b'{"choices": []}', b"null", b'{"choices": 3}']
)
def test_an_answer_that_is_no_completion_is_an_error(tmp_path, raw):
    with served(failing(9, (200, {}, raw))) as server, judging(server, tmp_path) as judge:
        assert judge.judge(submission(listing(11))).reason == "error"
    assert server.calls == 1


def test_a_reply_without_content_is_malformed(tmp_path):
    persona = failing(9, (200, {}, completion(None)))
    with served(persona) as server, judging(server, tmp_path) as judge:
        assert judge.judge(submission(listing(11))).reason == "malformed"


@pytest.mark.parametrize(
    "persona", [lambda asked: time.sleep(6.0) or honest(asked), lambda _: drip]
)
def test_a_slow_or_dripping_reply_ends_within_its_time(tmp_path, persona):
    with (
        served(persona) as server,
        judging(server, tmp_path, limits={"request_seconds": 0.5}) as judge,
    ):
        began = time.monotonic()
        found = judge.judge(submission(listing(11)))
        assert time.monotonic() - began < 3.0
    assert (found.reason, server.calls) == ("timeout", 1)


def test_a_submission_ends_within_its_own_time_whatever_its_requests_may_take(tmp_path):
    limits = {"submission_seconds": 0.5, "retries": 20, "backoff_seconds": 0.1}
    persona = failing(99, (503, {}, b""))
    with served(persona) as server, judging(server, tmp_path, limits=limits) as judge:
        began = time.monotonic()
        found = judge.judge(submission(listing(11)))
        assert time.monotonic() - began < 3.0
    assert found.reason == "unavailable"
    assert "no time is left" in found.detail


def test_one_slow_submission_delays_no_other(tmp_path):
    def slow_once(asked):
        if asked.section("ANSWER") == listing(1):
            time.sleep(8.0)
        return honest(asked)

    limits = {"request_seconds": 2.0}
    with served(slow_once) as server, judging(server, tmp_path, limits=limits) as judge:
        began = time.monotonic()
        found = judge.judge_all([submission(listing(n)) for n in range(1, 9)])
        assert time.monotonic() - began < 5.0
    assert [type(f) for f in found] == [NotJudged] + [Score] * 7


def test_concurrency_is_bounded(tmp_path):
    def slow(asked):
        time.sleep(0.05)
        return honest(asked)

    answers = [submission(listing(n)) for n in range(1, 11)]
    with served(slow) as server, judging(server, tmp_path, limits={"concurrency": 3}) as judge:
        judge.judge_all(answers)
        metrics = judge.metrics()
    assert 1 < server.most_at_once <= 3
    assert metrics["judge/latency_p99_s"] >= metrics["judge/latency_p50_s"] >= 0.05
    assert metrics["judge/tokens"] == 1000.0


@pytest.mark.parametrize("persona", [honest, failing(99, (401, {}, CANARY.encode())),
                                     failing(99, (503, {}, CANARY.encode())),
                                     failing(99, (200, {}, CANARY.encode()))])  # fmt: skip
def test_the_key_is_sent_and_shows_nowhere_else(tmp_path, monkeypatch, caplog, capfd, persona):
    monkeypatch.setenv("JUDGE_KEY", CANARY)
    caplog.set_level(logging.DEBUG)
    folder = tmp_path / "judge"
    with (
        served(persona) as server,
        judging(server, folder, limits={"retries": 1}, **KEYED) as judge,
    ):
        found = judge.judge(submission(listing(11)))
        seen = [repr(judge), repr(vars(judge)), repr(vars(judge._asker._endpoint)), repr(found)]
        seen += [str(judge.metrics()), judge.state().model_dump_json()]
    assert server.headers[0]["Authorization"] == f"Bearer {CANARY}"
    seen += [path.read_text() for path in folder.rglob("*") if path.is_file()]
    seen += [str(path) for path in folder.rglob("*")]
    seen += [caplog.text, *capfd.readouterr(), judge.config.model_dump_json()]
    assert not [text for text in seen if CANARY in text]


def test_a_judge_with_a_key_cannot_be_pickled(monkeypatch):
    monkeypatch.setenv("JUDGE_KEY", CANARY)
    with pytest.raises((pickle.PicklingError, TypeError, AttributeError)):
        pickle.dumps(ChatEndpoint(config("http://judge", **KEYED), lambda: None))


@pytest.mark.parametrize(
    "value", [None, "", "  ", CANARY + "\nX-Other: 1", CANARY + "\u2028x", CANARY + "\u20ac"]
)
def test_a_missing_or_impossible_key_is_refused_by_the_name_of_its_variable(
    tmp_path, monkeypatch, value
):
    monkeypatch.delenv("JUDGE_KEY", raising=False)
    if value is not None:
        monkeypatch.setenv("JUDGE_KEY", value)
    with pytest.raises(UsageError, match="JUDGE_KEY") as caught:
        ModelJudge(config("http://judge", **KEYED), 0, tmp_path, [])
    shown = "".join(traceback.format_exception(caught.value))
    assert CANARY not in shown


def test_no_text_of_an_answer_is_in_what_a_failure_says(tmp_path: Path):
    persona = failing(99, (400, {}, b"secret words"))
    with served(persona) as server, judging(server, tmp_path) as judge:
        assert "secret words" not in judge.judge(submission("secret words")).detail
