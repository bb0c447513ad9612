"""From sampled answers to rewards, wave by wave. "Could not be judged" is never reward 0."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from longstride.errors import DataError
from longstride.rewards.protocol import Judge, Judgment, NotJudged, Score, Submission
from longstride.tokens.chat import parse_answer
from schemas.rows import FinishReason, RLPrompt
from schemas.stages import RewardConfig

_WRONG = Score(0.0, correct=False)


@dataclass(frozen=True)
class Sampled:
    """One sampled answer, decoded."""

    prompt: RLPrompt
    """The problem."""
    text: str
    """The decoded sample, with its think tags."""
    finish_reason: FinishReason
    """Why sampling ended; an answer that was cut off is wrong."""
    length: int
    """Sampled tokens."""
    window: int
    """Output window in tokens."""


@dataclass(frozen=True)
class Reward:
    """What one sample earned."""

    correct: bool | None
    """Whether the verifier accepted the answer; None when it could not judge."""
    reward: float | None
    """Sum of `rewards`; None when the answer could not be judged."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Components: `correct`, `well_formed`, `overlong`, and `floor` where the sum was raised to the
    recipe's least; empty when not judged."""
    not_judged: str | None = None
    """Kind of failure, None when judged."""


def score_answers(samples: Sequence[Sampled], judge: Judge, config: RewardConfig) -> list[Reward]:
    """Score decoded answers, in their order.

    Correct means: it ended by itself, it holds exactly one well-formed <think> block followed by a
    non-empty answer, and the prompt's verifier accepts that answer. Only answers that fulfil the
    first two reach the judge.

    Raises:
        DataError: A prompt names no known verifier, or its entry is not what the verifier needs.
    """
    parsed = [parse_answer(sample.text) for sample in samples]
    asked = [
        place
        for place, sample in enumerate(samples)
        if sample.finish_reason == "stop" and parsed[place].well_formed
    ]
    submissions = [
        Submission(
            samples[place].prompt,
            parsed[place].answer.strip(),
            samples[place].text,
            samples[place].length,
        )
        for place in asked
    ]
    judgments: dict[int, Judgment] = dict(
        zip(asked, judge.judge_all(submissions) if submissions else [], strict=True)
    )
    return [_reward(sample, judgments.get(place), config) for place, sample in enumerate(samples)]


def _reward(sample: Sampled, judgment: Judgment | None, config: RewardConfig) -> Reward:
    """The components of one answer; without a judgment it never qualified for one."""
    if isinstance(judgment, NotJudged):
        return Reward(correct=None, reward=None, not_judged=judgment.reason)
    score = judgment or _WRONG
    penalty = overlong_penalty(sample.length, sample.window, config.overlong_share * sample.window)
    if config.repetition_is_overlong and sample.finish_reason == "repetition":
        penalty = -1.0
    in_part = config.partial_credit or sample.prompt.judge == "model"
    quality = score.value if in_part else float(score.correct)
    rewards = {
        "correct": config.correct * quality,
        "well_formed": config.well_formed if judgment is not None else 0.0,
        "overlong": config.overlong * penalty,
    }
    total = sum(rewards.values())
    if config.least is not None and total < config.least:
        rewards["floor"] = config.least - total
        total = config.least
    return Reward(correct=score.correct, reward=total, rewards=rewards)


def refuse_non_finite(rewards: Sequence[Reward], samples: Sequence[Sampled], where: str) -> None:
    """Refuse rewards that no advantage can be made of.

    Raises:
        DataError: Names the prompt, its components and its verifier.
    """
    for reward, sample in zip(rewards, samples, strict=True):
        if reward.reward is not None and not math.isfinite(reward.reward):
            raise DataError(
                f"the reward of prompt {sample.prompt.id!r}, {where}, is {reward.reward} "
                f"({reward.rewards}); mend the verifier {sample.prompt.verifier!r}"
            )


def overlong_penalty(length: int, window: int, cache: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), from 0 down to -1.

    0 up to `window - cache` tokens, then a straight line to -1 at `window`, and -1 beyond. Off
    (always 0) when `cache` is 0.
    """
    if cache <= 0:
        return 0.0
    excess = length - (window - cache)
    return 0.0 - min(1.0, max(0.0, excess / cache))
