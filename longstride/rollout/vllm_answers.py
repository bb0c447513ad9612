"""The part of vLLM's completion API that sampling needs: requests out, checked answers in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from longstride.errors import CheckpointError, GeneratorError
from longstride.rollout.protocol import SamplingSettings

PATH = "/v1/completions"
TOKENS_PER_EVENT = 64
"""Tokens that one event of a stream carries, the first and the last apart."""


@dataclass(frozen=True)
class Piece:
    """Tokens of one answer, or of one event of a stream."""

    tokens: list[int]
    logprobs: list[float]
    finish: str | None


def completion_request(
    prompt: Sequence[int], settings: SamplingSettings, seed: int, *, stream: bool
) -> dict[str, Any]:
    """Return the body of a request for one sample."""
    body: dict[str, Any] = {
        "prompt": list(prompt),
        "max_tokens": settings.max_new_tokens,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "seed": seed,
        "stop_token_ids": list(settings.stop_ids),
        # Only our own stop tokens count, not one that the model's configuration names.
        "ignore_eos": True,
        # The sampled token alone.
        "logprobs": 0,
        "return_token_ids": True,
        # The server has no tokenizer to turn ids into text with.
        "return_tokens_as_token_ids": True,
    }
    if stream:
        body |= {"stream": True, "stream_interval": TOKENS_PER_EVENT}
    return body


def read_piece(answer: dict[str, Any]) -> Piece:
    """Check and take the tokens of an answer.

    Raises:
        GeneratorError: it does not hold what was asked for.
        CheckpointError: a log-probability is not a finite number.
    """
    try:
        (choice,) = answer["choices"]
        tokens, finish = choice["token_ids"], choice["finish_reason"]
        logprobs = choice["logprobs"]["token_logprobs"]
    except (KeyError, TypeError, ValueError) as error:
        raise GeneratorError(
            f"vLLM's answer has no choice with token_ids and logprobs ({type(error).__name__}: "
            f"{error}); this version of vLLM does not speak the API that 0.32 has: {_shown(answer)}"
        ) from error
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise GeneratorError(f"vLLM's token_ids are not a list of integers: {_shown(answer)}")
    if not isinstance(logprobs, list) or len(logprobs) != len(tokens):
        raise GeneratorError(
            f"vLLM returned {len(tokens)} tokens with "
            f"{len(logprobs) if isinstance(logprobs, list) else 'no'} log-probabilities: "
            f"{_shown(answer)}"
        )
    return Piece(tokens, [_finite(value) for value in logprobs], finish)


def read_prompt_logprobs(answer: dict[str, Any], prompt: Sequence[int]) -> list[float]:
    """Return the log-probability of each prompt token from the second on.

    Raises:
        GeneratorError: the answer does not hold them.
        CheckpointError: one is not a finite number.
    """
    try:
        rows = answer["choices"][0]["prompt_logprobs"]
        found = [
            row[str(token)]["logprob"] for row, token in zip(rows[1:], prompt[1:], strict=True)
        ]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise GeneratorError(
            f"vLLM's answer has no log-probability for every one of {len(prompt)} prompt tokens "
            f"({type(error).__name__}: {error}): {_shown(answer)}"
        ) from error
    return [_finite(value) for value in found]


def _finite(value: object) -> float:
    # JSON has no NaN: it arrives as null, or as vLLM's stand-in for minus infinity.
    if not isinstance(value, int | float) or not math.isfinite(value) or value <= -9999.0:
        raise CheckpointError(
            f"vLLM reports {value!r} as the log-probability of a token: the model's logits are NaN "
            "or infinite; its weights have diverged or are corrupt: generate from an earlier "
            "checkpoint"
        )
    return float(value)


def _shown(answer: dict[str, Any]) -> str:
    text = repr(answer)
    return text if len(text) <= 400 else text[:400] + " ..."
