"""What a judge has paid for is kept: verdicts and budget survive a restart."""

import json

import pytest
from scripted_judge import (
    honest,
    inconsistent,
    judging,
    listing,
    refuses,
    served,
    submission,
)

from longstride.errors import DataError
from longstride.rewards.generative.judge import JudgeState

ANSWERS = [submission(listing(n), kind) for n in (1, 4, 11) for kind in ("consistency", "pairwise")]


def test_an_equal_run_repeats_no_call_and_gives_equal_judgments(tmp_path):
    with served(inconsistent) as server:
        with judging(server, tmp_path) as judge:
            first = judge.judge_all(ANSWERS)
        paid = server.calls
        with judging(server, tmp_path) as judge:
            second = judge.judge_all(ANSWERS)
            assert judge.metrics()["judge/cache_hits"] == paid
            assert judge.metrics()["judge/calls"] == 0.0
    assert second == first
    assert server.calls == paid > 0


def test_refusals_are_kept_too(tmp_path):
    with served(refuses) as server:
        for _ in range(2):
            with judging(server, tmp_path) as judge:
                assert judge.judge(ANSWERS[0]).reason == "malformed"
        assert server.calls == 3


def test_an_outage_is_not_kept(tmp_path):
    def ill_first(asked):
        return (503, {}, b"") if asked.number == 0 else honest(asked)

    with served(ill_first) as server:
        with judging(server, tmp_path, limits={"retries": 0}) as judge:
            assert judge.judge(ANSWERS[4]).reason == "unavailable"
        with judging(server, tmp_path, limits={"retries": 0}) as judge:
            assert judge.judge(ANSWERS[4]).value == 1.0


@pytest.mark.parametrize("change", ["model", "sampling", "template"])
def test_another_model_sampling_or_template_is_another_question(tmp_path, monkeypatch, change):
    from longstride.rewards.generative import asking
    from longstride.rewards.generative.templates import Template, load_template

    with served(honest) as server:
        with judging(server, tmp_path) as judge:
            judge.judge(ANSWERS[0])
        changes = {"sampling": {"temperature": 0.1}} if change == "sampling" else {}
        if change == "template":
            old = load_template("consistency")
            edited = Template(old.name, old.version, old.text + " ", "another digest")
            monkeypatch.setattr(asking, "load_template", lambda name: edited)
        with judging(server, tmp_path, **changes) as judge:
            if change == "model":
                judge._asker.config = judge.config.model_copy(update={"model": "judge-2"})
            judge.judge(ANSWERS[0])
        assert server.calls == 2


def test_an_exhausted_budget_is_no_judgment_and_stays_exhausted_after_a_restart(tmp_path):
    limits = {"max_calls": 2, "concurrency": 1}
    with served(honest) as server:
        with judging(server, tmp_path, limits=limits) as judge:
            found = judge.judge_all([submission(listing(n)) for n in (1, 2, 3)])
            assert [getattr(f, "reason", None) for f in found] == [None, None, "budget"]
        with judging(server, tmp_path, limits=limits) as judge:
            # What is in the cache costs nothing.
            found = judge.judge_all([submission(listing(n)) for n in (1, 2, 3)])
            assert [getattr(f, "reason", None) for f in found] == [None, None, "budget"]
        assert server.calls == 2
        with judging(server, tmp_path, limits={"max_calls": 3}) as judge:
            assert judge.judge(submission(listing(3))).parts["grade"] == 2.0


def test_every_try_of_a_request_counts_against_the_budget(tmp_path):
    persona = lambda asked: (503, {}, b"")  # noqa: E731
    with (
        served(persona) as server,
        judging(server, tmp_path, limits={"max_calls": 2, "retries": 9}) as judge,
    ):
        assert judge.judge(ANSWERS[0]).reason == "budget"
        assert server.calls == 2


def test_tokens_have_a_budget_of_their_own(tmp_path):
    limits = {"max_tokens": 150, "concurrency": 1}
    with served(honest) as server:
        with judging(server, tmp_path, limits=limits) as judge:
            found = judge.judge_all([submission(listing(n)) for n in (1, 2, 3)])
        with judging(server, tmp_path, limits=limits) as judge:
            assert judge.judge(submission(listing(4))).reason == "budget"
        assert server.calls == 2
    assert [getattr(f, "reason", None) for f in found] == [None, None, "budget"]


def test_a_ledger_that_a_kill_cut_short_keeps_what_it_says(tmp_path):
    (tmp_path / "calls.jsonl").write_bytes(b'{"calls":1}\n{"tokens":100}\n{"calls":1}\n{"tok')
    with served(honest) as server:
        for _ in range(2):
            with judging(server, tmp_path, limits={"max_calls": 3}) as judge:
                judge.judge_all([submission(listing(n)) for n in (1, 2, 3)])
        assert server.calls == 1
    lines = (tmp_path / "calls.jsonl").read_text().splitlines()
    assert lines[3:] == ['{"tok', '{"calls":1}', '{"tokens":100}']


def test_a_ledger_or_a_verdict_that_is_something_else_is_refused(tmp_path):
    with served(honest) as server:
        with judging(server, tmp_path) as judge:
            judge.judge(ANSWERS[0])
        (verdict,) = (tmp_path / "verdicts").rglob("*.json")
        verdict.write_text(json.dumps({"grade": 5}))
        with judging(server, tmp_path) as judge, pytest.raises(DataError, match=verdict.name):
            judge.judge(ANSWERS[0])
        (tmp_path / "calls.jsonl").write_text("12 calls\n")
        with pytest.raises(DataError, match=r"calls\.jsonl, line 1"), judging(server, tmp_path):
            pass


def test_the_state_of_a_judge_survives_as_json(tmp_path):
    shaping = {"normalise": "running", "warmup": 2}
    with served(honest) as server:
        with judging(server, tmp_path, shaping=shaping) as judge:
            judge.judge_all([submission(listing(n)) for n in (2, 6, 9)])
            state = judge.state()
            wanted = judge.judge(submission(listing(11)))
        again = JudgeState.model_validate_json(state.model_dump_json())
        assert again == state
        with judging(server, tmp_path, again, shaping=shaping) as judge:
            assert judge.judge(submission(listing(11))) == wanted
        with judging(server, tmp_path, shaping=shaping) as judge:
            assert judge.judge(submission(listing(11))) != wanted
