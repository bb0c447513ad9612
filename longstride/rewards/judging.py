"""The judge of a run: rules by verifier, and a reward model for the prompts that ask for one."""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from longstride.errors import DataError
from longstride.rewards.programs import judge_program
from longstride.rewards.protocol import Judge, Judgment, NotJudged, Score, Submission
from longstride.rewards.sandbox.backends import SandboxUnavailable, available
from longstride.rewards.sandbox.jails import Jails
from longstride.rewards.software import judge_patch
from longstride.rewards.verifiers import (
    ACCEPTED,
    CODE,
    SOFTWARE_ENGINEERING,
    Verifier,
    verifier_of,
)
from longstride.rewards.workers import VerifierProcesses
from schemas.rows import RLPrompt
from schemas.verification import JudgingConfig

_MIB = 1 << 20

PROGRAM_JUDGES: dict[str, Callable[[Submission, Jails, JudgingConfig], Judgment]] = {
    CODE: judge_program,
    SOFTWARE_ENGINEERING: judge_patch,
}
"""Verifiers that run in the sandbox."""


class RuleJudge:
    """Judges by each prompt's verifier, within the recipe's limits.

    Processes and sandboxes start when they are first needed, and end with `close`.
    """

    def __init__(self, config: JudgingConfig) -> None:
        self.config = config
        self.processes = VerifierProcesses(
            config.deadline_seconds, config.workers, config.memory_mb * _MIB
        )
        self.jails = Jails(config.sandbox)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def prepare(self, prompts: Iterable[RLPrompt]) -> None:
        """Start what the first answers to these prompts will need; returns at once.

        Raises:
            SandboxUnavailable: Programs are to be judged, and no sandbox is installed.
        """
        jobs = []
        programs = False
        for prompt in prompts:
            verifier = verifier_of(prompt)
            programs |= verifier.where == "sandbox"
            if verifier.package is not None:
                jobs.append(verifier.package(prompt))
        self.processes.prepare(jobs)
        if programs:
            available(self.config.sandbox.backend)
            self.jails.prepare()

    def judge(self, submission: Submission) -> Judgment:
        """Judge one answer."""
        return self.judge_all([submission])[0]

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judgment]:
        """Judge many, in their order.

        Raises:
            DataError: A prompt names no known verifier, or its entry is not what that needs.
        """
        verifiers = [verifier_of(submission.prompt) for submission in submissions]
        groups: dict[str, list[int]] = {}
        for place, verifier in enumerate(verifiers):
            groups.setdefault(verifier.where, []).append(place)
        results: dict[int, Judgment] = {}
        for where, places in groups.items():
            members = [submissions[place] for place in places]
            rules = [verifiers[place] for place in places]
            judgments = self._judge_in(where)(members, rules)
            results |= dict(zip(places, judgments, strict=True))
        return [results[place] for place in range(len(submissions))]

    def close(self) -> None:
        """End every process."""
        self.processes.close()
        self.jails.close()

    def _judge_in(
        self, where: str
    ) -> Callable[[Sequence[Submission], Sequence[Verifier]], list[Judgment]]:
        return {"here": self._here, "process": self._in_processes, "sandbox": self._in_sandbox}[
            where
        ]

    def _here(
        self, submissions: Sequence[Submission], verifiers: Sequence[Verifier]
    ) -> list[Judgment]:
        results: list[Judgment] = []
        for submission, verifier in zip(submissions, verifiers, strict=True):
            assert verifier.rule is not None
            value = verifier.rule(submission.prompt, submission.answer)
            results.append(Score(value, value >= ACCEPTED))
        return results

    def _in_processes(
        self, submissions: Sequence[Submission], verifiers: Sequence[Verifier]
    ) -> list[Judgment]:
        jobs = []
        for submission, verifier in zip(submissions, verifiers, strict=True):
            assert verifier.job is not None
            jobs.append(verifier.job(submission.prompt, submission.answer))
        return self.processes.run(jobs)

    def _in_sandbox(
        self, submissions: Sequence[Submission], verifiers: Sequence[Verifier]
    ) -> list[Judgment]:
        judges = [PROGRAM_JUDGES[verifier.name] for verifier in verifiers]

        def one(place: int) -> Judgment:
            try:
                return judges[place](submissions[place], self.jails, self.config)
            except SandboxUnavailable as error:
                return NotJudged("unavailable", str(error))

        with ThreadPoolExecutor(self.config.sandbox.slots, "sandbox") as slots:
            return list(slots.map(one, range(len(submissions))))


@dataclass(frozen=True)
class ComposedJudge:
    """Rules for prompts that a rule judges, the reward model for those that ask for one."""

    rules: Judge
    model: Judge | None = None

    def judge(self, submission: Submission) -> Judgment:
        """Judge one answer."""
        return self.judge_all([submission])[0]

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judgment]:
        """Judge many, in their order.

        Raises:
            DataError: A prompt asks for a reward model, and there is none.
        """
        by_model = [submission.prompt.judge == "model" for submission in submissions]
        require_model(self.model, (s.prompt for s in submissions))
        results: dict[int, Judgment] = {}
        for wanted, judge in ((False, self.rules), (True, self.model)):
            places = [place for place, own in enumerate(by_model) if own is wanted]
            if places and judge is not None:
                judgments = judge.judge_all([submissions[place] for place in places])
                results |= dict(zip(places, judgments, strict=True))
        return [results[place] for place in range(len(submissions))]


def require_model(model: Judge | None, prompts: Iterable[RLPrompt]) -> None:
    """Refuse prompts that nothing could judge.

    Raises:
        DataError: A prompt asks for a reward model, and there is none.
    """
    lacking = [prompt.id for prompt in prompts if prompt.judge == "model"] if model is None else []
    if lacking:
        raise DataError(
            f"{len(lacking)} prompts are to be judged by a reward model (first: {lacking[0]!r}), "
            "but the recipe configures none; configure one, or leave these prompts out"
        )


@contextmanager
def open_judge(
    config: JudgingConfig, prompts: Sequence[RLPrompt] = (), model: Judge | None = None
) -> Iterator[ComposedJudge]:
    """The judge of a task; its processes start now, for these prompts, and end with the block.

    Raises:
        DataError: A prompt asks for a reward model, and there is none.
    """
    require_model(model, prompts)
    with RuleJudge(config) as rules:
        rules.prepare(prompt for prompt in prompts if prompt.judge == "rule")
        yield ComposedJudge(rules, model)


def shared_judge() -> RuleJudge:
    """A judge with default limits for checks of references; lives as long as this process."""
    return _judge_of_process(os.getpid())


@lru_cache(maxsize=1)
def _judge_of_process(pid: int) -> RuleJudge:
    # By process, because a fork must not share its parent's pipes.
    judge = RuleJudge(JudgingConfig())
    atexit.register(judge.close)
    return judge
