"""The judge of an RL round: rules, and a model under the length watch where the recipe has one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from longstride.rewards.generative.judge import JudgeState, ModelJudge, open_model_judge
from longstride.rewards.generative.probes import check_before_rl
from longstride.rewards.judging import open_judge
from longstride.rewards.protocol import Judge, Judgment, Submission
from schemas.recipe import Recipe
from schemas.rows import RLPrompt

JUDGE_FOLDER = "judge"
"""Verdicts and budget of a round, beside its in-progress checkpoints."""


class RoundJudge:
    """Judges waves, and lets the length watch see each once.

    Answers that a rule has judged anchor the watch: the model grades some of them too, so that what
    it gives for length alone can be told from what it gives for being right.
    """

    def __init__(self, judge: Judge, model: ModelJudge | None) -> None:
        """Wrap the judge of a round; `model` is the one inside it, if any."""
        self._judge = judge
        self._model = model

    def judge(self, submission: Submission) -> Judgment:
        """Judge one answer, as a wave of one."""
        return self.judge_all([submission])[0]

    def judge_all(self, submissions: Sequence[Submission]) -> list[Judgment]:
        """Judge a wave; what the watch learns of it counts from the next one on."""
        judgments = self._judge.judge_all(submissions)
        if self._model is not None:
            pairs = list(zip(submissions, judgments, strict=True))
            by_model = [pair for pair in pairs if pair[0].prompt.judge == "model"]
            self._model.observe(
                [submission for submission, _ in by_model],
                [judgment for _, judgment in by_model],
                [None] * len(by_model),
            )
            self._model.observe_anchors(submissions, judgments)
        return judgments

    def state(self) -> dict[str, Any]:
        """What later scores depend on, as JSON; empty without a model."""
        return self._model.state().model_dump(mode="json") if self._model is not None else {}

    def go_on_from(self, state: Mapping[str, Any]) -> None:
        """Score from here on as the judge that had this state would; an empty one says nothing."""
        if self._model is not None and state:
            self._model.go_on_from(JudgeState.model_validate(state))

    def metrics(self) -> dict[str, float]:
        """By metric name; empty without a model."""
        return self._model.metrics() if self._model is not None else {}


@contextmanager
def open_round_judge(
    recipe: Recipe,
    number: int,
    prompts: Sequence[RLPrompt],
    directory: Path,
    state: JudgeState | None,
) -> Iterator[RoundJudge]:
    """The judge of a round. Its processes start now, and end with the block.

    Before round 1 a model is probed with padded and tricked answers, and refused if it falls for
    them.

    Args:
        recipe: the resolved recipe.
        number: of the round.
        prompts: of the round; none on ranks that judge nothing.
        directory: of the round's in-progress checkpoints; keeps verdicts over attempts.
        state: of the judge at the end of the round before.

    Raises:
        QualityGateBlocked: The model is not a healthy judge.
        DataError: A prompt asks for a reward model, and the recipe has none.
    """
    if recipe.rewards.model is None or not prompts:
        with open_judge(recipe.rewards.judging, prompts) as judge:
            yield RoundJudge(judge, None)
        return
    families = {prompt.family for prompt in prompts}
    folder = directory / JUDGE_FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    with open_model_judge(recipe, folder, families, state) as model:
        if number == 1:
            check_before_rl(model, prompts, folder)
        with open_judge(recipe.rewards.judging, prompts, model) as judge:
            yield RoundJudge(judge, model)
