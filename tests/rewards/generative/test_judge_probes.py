"""The check before RL: probes made of the prompts that the judge will judge."""

import re

import pytest
from scripted_judge import (
    PRIMES,
    honest,
    judging,
    listing,
    obeys_orders,
    served,
    submission,
)

from longstride.errors import DataError, QualityGateBlocked
from longstride.rewards.generative.probes import (
    TRICKS,
    ProbeReport,
    check_before_rl,
    items_from_prompts,
)


def prompts(verifier, counts=(11, 3, 7)):
    """Prompts for lists of different lengths."""
    found = [submission("", verifier, listing(n), f"{verifier}-{n}").prompt for n in counts]
    return [
        p.model_copy(update={"prompt": f"List the first {n} primes above ten."})
        for p, n in zip(found, counts, strict=True)
    ]


def knows(asked):
    """A healthy judge: the list that the problem asks for, and nothing else, is right."""
    wanted = {str(p) for p in PRIMES[: int(re.search(r"first (\d+)", asked.section("PROBLEM"))[1])]}

    def right(name):
        return set(re.findall(r"\b\d\d\b", asked.section(name))) == wanted

    if not asked.pairwise:
        return asked.verdict(5 if right("ANSWER") else 1)
    if right("FIRST") == right("SECOND"):
        return asked.verdict("tie")
    return asked.verdict("first" if right("FIRST") else "second")


def test_the_worse_answer_is_the_next_prompts_reference():
    items = items_from_prompts(prompts("pairwise"), 10)
    assert [(i.good, i.worse) for i in items] == [
        (listing(11), listing(3)), (listing(3), listing(7)), (listing(7), listing(11)),
    ]  # fmt: skip
    assert len(items_from_prompts(prompts("pairwise"), 2)) == 2


def test_prompts_with_equal_references_give_no_probe():
    assert items_from_prompts(prompts("pairwise", (3, 3)), 10) == []


def test_a_healthy_judge_passes_and_its_report_is_kept(tmp_path):
    every = [*prompts("consistency"), *prompts("pairwise")]
    with served(knows) as server, judging(server, tmp_path / "judge") as judge:
        reports = check_before_rl(judge, every, tmp_path / "out")
    assert [r.verifier for r in reports] == ["consistency", "pairwise"]
    for report in reports:
        written = (tmp_path / "out" / f"probe-{report.verifier}.json").read_text()
        assert ProbeReport.model_validate_json(written) == report
        assert sum(kind.probes for kind in report.kinds) == 3 * len(TRICKS)


def test_a_judge_that_obeys_answers_is_refused_before_rl_and_the_report_says_why(tmp_path):
    with (
        served(obeys_orders) as server,
        judging(server, tmp_path / "judge") as judge,
        pytest.raises(QualityGateBlocked, match=r"3 of 3 worse answers with injection"),
    ):
        check_before_rl(judge, prompts("consistency"), tmp_path / "out")
    assert (tmp_path / "out" / "probe-consistency.json").is_file()


def test_prompts_of_rules_are_no_concern_of_the_model(tmp_path):
    ruled = [p.model_copy(update={"judge": "rule"}) for p in prompts("consistency")]
    with served(honest) as server, judging(server, tmp_path / "judge") as judge:
        assert check_before_rl(judge, ruled, tmp_path / "out") == []
    assert server.calls == 0


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [({"answer": " "}, DataError, "no reference"), ({"answer": "x"}, QualityGateBlocked, "probed")],
)
def test_prompts_that_cannot_be_probed_are_refused(tmp_path, changes, error, message):
    every = [p.model_copy(update=changes) for p in prompts("pairwise")]
    with served(honest) as server, judging(server, tmp_path / "judge") as judge:
        with pytest.raises(error, match=message):
            check_before_rl(judge, every, tmp_path)
        assert server.calls == 0
