"""The judge of prompts that rules cannot judge, as the collector takes it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from pydantic import Field

from longstride.errors import DataError, UsageError
from longstride.rewards.generative.asking import Asker
from longstride.rewards.generative.failures import CallFailed
from longstride.rewards.generative.judgments import (
    Comparison,
    compare,
    compare_with_reference,
    deadline,
    grade,
)
from longstride.rewards.generative.shaping import RunningMoments, Shaper
from longstride.rewards.generative.swiss import Standing, swiss
from longstride.rewards.length_bias import LengthWatch, Observation, Recalibration, WatchState
from longstride.rewards.protocol import Judgment, NotJudged, Score, Submission
from longstride.store.files import write_json
from schemas.base import Contract
from schemas.judging import CONSISTENCY, MODEL_VERIFIERS, PAIRWISE, GenerativeJudgeConfig
from schemas.recipe import Recipe
from schemas.rows import RLPrompt

JUDGED = "judged"
"""Part of a score: what the judge said, before adjustment and shaping; what the watch is fed."""
RECALIBRATIONS_FILE = "recalibrations.json"


class JudgeState(Contract):
    """What later scores depend on; it belongs into the round's checkpoint, beside the weights."""

    watch: WatchState = Field(default_factory=WatchState)
    """Length watch."""
    moments: dict[str, RunningMoments] = Field(default_factory=dict)
    """Running moments of judged quality by family."""


class Recalibrations(Contract):
    """The record of all recalibrations of a judge."""

    recalibrations: list[Recalibration]
    """In order, each with the correlations before and after."""


class ModelJudge:
    """Judges by a model; implements `longstride.rewards.protocol.Judge`.

    A score's `value` is what is learnt from: judged quality with what length is worth taken out,
    then shaped. Its `correct` follows the judge's verdict alone. `parts` hold the judged quality
    (`judged`), the change by the length watch (`length`), and the grade or outcome.

    Scores of a batch depend on earlier calls of `judge_all` and `observe` only through `state()`.
    """

    def __init__(
        self,
        config: GenerativeJudgeConfig,
        seed: int,
        directory: Path,
        families: Iterable[str],
        state: JudgeState | None = None,
    ) -> None:
        """Open a judge over a directory, which keeps verdicts and budget.

        Args:
            config: the recipe's `rewards.model`.
            seed: every seed of a question derives from it.
            directory: of one judge; used by one process at a time.
            families: all families of prompts that it can meet.
            state: to go on from.

        Raises:
            UsageError: the key's variable is not set.
            DataError: the directory's ledger cannot be read.
        """
        state = state or JudgeState()
        self.config = config
        self._directory = directory
        self._asker = Asker(config, seed, directory)
        self._families = frozenset(families)
        self._watch = LengthWatch(config.length, self._families, state.watch)
        self._shaper = Shaper(config.shaping, state.moments)

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the ledger."""
        self.close()

    def close(self) -> None:
        """Close the ledger; nothing can be judged any more."""
        self._asker.close()

    def judge(self, submission: Submission) -> Judgment:
        """Judge one answer, as a batch of one."""
        return self.judge_all([submission])[0]

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judgment]:
        """Judge many, in their order; equal answers to one prompt are judged once.

        Raises:
            DataError: a prompt's verifier is not one of a model, or it has no reference answer.
        """
        for submission in submissions:
            check_prompt(submission.prompt)
        raw = self._verdicts(submissions)
        for judgment in raw:
            self._asker.counters.judged(judgment)
        scored = [(place, found) for place, found in enumerate(raw) if isinstance(found, Score)]
        adjusted = [
            self._watch.adjust(
                submissions[place].prompt.family, score.value, self._length(submissions[place])
            )
            for place, score in scored
        ]
        families = [submissions[place].prompt.family for place, _ in scored]
        shaped = self._shaper.shape(families, adjusted)
        judged: list[Judgment] = list(raw)
        for (place, score), value, final in zip(scored, adjusted, shaped, strict=True):
            parts = {**score.parts, JUDGED: score.value, "length": value - score.value}
            judged[place] = replace(score, value=final, parts=parts)
        return judged

    def compare_all(self, games: Sequence[tuple[str, str, str]]) -> list[Comparison | NotJudged]:
        """Compare (problem, candidate, other) each, in both orders."""
        if not games:
            return []
        with self._pool(len(games)) as pool:
            return list(pool.map(self._comparison, games))

    def choose_reference(self, problem: str, candidates: Sequence[str]) -> list[Standing]:
        """Rank candidate answers by Swiss rounds, the best first (report, sec. 4.2).

        A game that cannot be judged is a draw; nothing is chosen on a judge that is down.

        Raises:
            DataError: more than a quarter of the games of a round could not be judged.
        """

        def play(pairs: Sequence[tuple[int, int]]) -> list[int]:
            found = self.compare_all([(problem, candidates[a], candidates[b]) for a, b in pairs])
            failed = [f for f in found if isinstance(f, NotJudged)]
            if 4 * len(failed) > len(found):
                raise DataError(
                    f"{len(failed)} of {len(found)} comparisons of a round could not be judged "
                    f"({failed[0].reason}: {failed[0].detail}); choose references again when "
                    "the judge is well"
                )
            return [0 if isinstance(f, NotJudged) else f.outcome for f in found]

        return swiss(len(candidates), play)

    def observe(
        self,
        submissions: Sequence[Submission],
        judgments: Sequence[Judgment],
        qualities: Sequence[float | None],
    ) -> list[Recalibration]:
        """Feed the length watch one generation batch, once; return what it recalibrated.

        Every recalibration so far is written into the directory, with before and after.

        Args:
            submissions: what was judged.
            judgments: what `judge_all` made of it.
            qualities: quality by a rule or a person, from 0 to 1; None where there is none.
        """
        found = self._watch.observe(
            [
                Observation(
                    family=submission.prompt.family,
                    prompt_id=submission.prompt.id,
                    reward=judgment.parts[JUDGED],
                    length=self._length(submission),
                    quality=quality,
                )
                for submission, judgment, quality in zip(
                    submissions, judgments, qualities, strict=True
                )
                if isinstance(judgment, Score)
            ]
        )
        if found:
            record = Recalibrations(recalibrations=self._watch.state.recalibrations)
            write_json(self._directory / RECALIBRATIONS_FILE, record)
        return found

    def observe_anchors(
        self, submissions: Sequence[Submission], judgments: Sequence[Judgment]
    ) -> list[Recalibration]:
        """Grade answers that rules have judged, and feed the watch with both.

        The first `length.anchor_prompts` prompts with a reference answer and at least two judged
        answers are taken. Their rewards stay the rule's; shaping does not see them.

        Args:
            submissions: of one generation batch.
            judgments: by rules; what is not judged is left out.
        """
        groups: dict[str, list[int]] = {}
        for place, (submission, judgment) in enumerate(zip(submissions, judgments, strict=True)):
            prompt = submission.prompt
            if prompt.judge == "rule" and prompt.answer.strip() and isinstance(judgment, Score):
                groups.setdefault(prompt.id, []).append(place)
        several = [places for places in groups.values() if len(places) > 1]
        chosen = [p for places in several[: self.config.length.anchor_prompts] for p in places]
        if not self.config.length.enabled or not chosen:
            return []
        anchors = [
            replace(one, prompt=one.prompt.model_copy(update={"verifier": CONSISTENCY}))
            for one in (submissions[place] for place in chosen)
        ]
        graded: list[Judgment] = []
        for found in self._verdicts(anchors):
            self._asker.counters.judged(found)
            if isinstance(found, Score):
                found = replace(found, parts={JUDGED: found.value})
            graded.append(found)
        verified = [judgments[place] for place in chosen]
        qualities = [v.value if isinstance(v, Score) else None for v in verified]
        return self.observe(anchors, graded, qualities)

    def state(self) -> JudgeState:
        """What a resumed round needs to give the same scores."""
        return JudgeState(watch=self._watch.state, moments=self._shaper.moments).model_copy(
            deep=True
        )

    def go_on_from(self, state: JudgeState) -> None:
        """Score from here on as the judge that had this state would."""
        state = state.model_copy(deep=True)
        self._watch = LengthWatch(self.config.length, self._families, state.watch)
        self._shaper = Shaper(self.config.shaping, state.moments)

    def metrics(self) -> dict[str, float]:
        """By metric name; sums since the judge was opened."""
        return {**self._asker.counters.metrics(), **self._watch.metrics()}

    def _verdicts(self, submissions: Sequence[Submission]) -> list[Judgment]:
        distinct: dict[tuple[str, ...], Submission] = {}
        keys = []
        for submission in submissions:
            prompt = submission.prompt
            key = (prompt.verifier, prompt.prompt, prompt.answer, submission.answer)
            distinct.setdefault(key, submission)
            keys.append(key)
        if not keys:
            return []
        with self._pool(len(distinct)) as pool:
            found = dict(zip(distinct, pool.map(self._verdict, distinct.values()), strict=True))
        return [found[key] for key in keys]

    def _verdict(self, submission: Submission) -> Judgment:
        judge = {CONSISTENCY: grade, PAIRWISE: compare_with_reference}[submission.prompt.verifier]
        prompt = submission.prompt
        try:
            return judge(
                self._asker, prompt.prompt, prompt.answer, submission.answer, deadline(self._asker)
            )
        except CallFailed as failure:
            return failure.judgment()

    def _length(self, submission: Submission) -> int:
        read = len(submission.answer)
        return read if self.config.length.of == "answer" else submission.tokens

    def _comparison(self, game: tuple[str, str, str]) -> Comparison | NotJudged:
        try:
            return compare(self._asker, *game, deadline(self._asker))
        except CallFailed as failure:
            return failure.judgment()

    def _pool(self, jobs: int) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(min(self.config.limits.concurrency, jobs), "judge-request")


def check_prompt(prompt: RLPrompt) -> None:
    """Refuse a prompt that no model can judge.

    Raises:
        DataError: its verifier is not one of a model, or it has no reference answer.
    """
    if prompt.verifier not in MODEL_VERIFIERS:
        raise DataError(
            f"prompt {prompt.id} is judged by a model, but names verifier {prompt.verifier!r}; "
            f"name one of {', '.join(MODEL_VERIFIERS)}"
        )
    if not prompt.answer.strip():
        raise DataError(
            f"prompt {prompt.id} has no reference answer; choose one among candidates by Swiss "
            "rounds (docs/generative-judge.md)"
        )


def open_model_judge(
    recipe: Recipe,
    directory: Path,
    families: Iterable[str] = (),
    state: JudgeState | None = None,
) -> ModelJudge:
    """The judge of a recipe's model-judged prompts.

    Args:
        recipe: with `rewards.model`.
        directory: keeps verdicts, budget and the record of recalibrations.
        families: of prompts from outside the recipe, beside the families of `tasks`.
        state: of an earlier judge, to go on from.

    Raises:
        UsageError: the recipe has no `rewards.model`, or the key's variable is not set.
    """
    config = recipe.rewards.model
    if config is None:
        raise UsageError(
            f"recipe {recipe.name} has no rewards.model, so no model can judge; set "
            "rewards.model.url and rewards.model.model"
        )
    known = {task.name for task in recipe.tasks} | set(families)
    return ModelJudge(config, recipe.seed, directory, known, state)
