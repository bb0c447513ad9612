"""From a sampled answer to its reward. "Could not be judged" is never reward 0."""

from __future__ import annotations

from dataclasses import dataclass, field

from longstride.rewards.verifiers import accepts
from longstride.tokens.chat import parse_answer
from schemas.rows import FinishReason, RLPrompt
from schemas.stages import RewardConfig


@dataclass(frozen=True)
class Score:
    """What one sample earned."""

    correct: bool | None
    """Whether the verifier accepted the answer; None when it could not judge."""
    reward: float | None
    """Sum of `rewards`; None when the answer could not be judged."""
    rewards: dict[str, float] = field(default_factory=dict)
    """Components: `correct`, `well_formed`, `overlong`; empty when not judged."""


def score_answer(
    prompt: RLPrompt,
    text: str,
    finish_reason: FinishReason,
    length: int,
    window: int,
    config: RewardConfig,
) -> Score:
    """Score a decoded answer.

    Correct means: it ended by itself, it holds exactly one well-formed <think> block followed by a
    non-empty answer, and the prompt's verifier accepts that answer.

    Args:
        prompt: the problem.
        text: the decoded sample, with its think tags.
        finish_reason: why sampling ended; an answer that was cut off is wrong.
        length: sampled tokens.
        window: output window in tokens.
        config: what the components are worth.
    """
    parsed = parse_answer(text)
    finished = finish_reason == "stop" and parsed.well_formed
    correct = accepts(prompt, parsed.answer.strip()) if finished else False
    if correct is None:
        return Score(correct=None, reward=None)
    penalty = overlong_penalty(length, window, config.overlong_share * window)
    if config.repetition_is_overlong and finish_reason == "repetition":
        penalty = -1.0
    rewards = {
        "correct": config.correct if correct else 0.0,
        "well_formed": config.well_formed if finished else 0.0,
        "overlong": config.overlong * penalty,
    }
    return Score(correct=correct, reward=sum(rewards.values()), rewards=rewards)


def overlong_penalty(length: int, window: int, cache: float) -> float:
    """DAPO's soft overlong punishment (arXiv 2503.14476, eq. 13), from 0 down to -1.

    0 up to `window - cache` tokens, then a straight line to -1 at `window`, and -1 beyond. Off
    (always 0) when `cache` is 0.
    """
    if cache <= 0:
        return 0.0
    excess = length - (window - cache)
    return 0.0 - min(1.0, max(0.0, excess / cache))
