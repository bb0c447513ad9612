"""Many samples from a vLLM server at a time, with the stop rules of the generator protocol.

vLLM has no rule like the repetition rule, so it is applied here while tokens stream in, and the
request is aborted. Tokens come in blocks: up to `TOKENS_PER_EVENT` tokens of a repeating sample are
computed in vain. Without the rule nothing streams, and a sample is one answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import closing

import torch

from longstride.errors import GeneratorError, UsageError
from longstride.rollout.protocol import FinishReason, Progress, Sample, SamplingSettings
from longstride.rollout.stopping import repetition_stop
from longstride.rollout.vllm_answers import PATH, completion_request, read_piece
from longstride.rollout.vllm_http import Deadline, ServerConnection
from schemas.generators import VLLM_TEMPERATURES

Job = tuple[Sequence[int], int]
"""A prompt and the seed of one sample of it."""


def check_settings(settings: SamplingSettings) -> None:
    """Refuse what vLLM would do differently without saying so.

    Raises:
        UsageError: names the setting.
    """
    low, high = VLLM_TEMPERATURES
    if settings.temperature and not low <= settings.temperature <= high:
        raise UsageError(
            f"temperature={settings.temperature} lies outside {low} to {high}, which is what vLLM "
            "can sample at; change it, or use the native generator"
        )
    if settings.repetition_run and settings.top_p < 1.0:
        raise UsageError(
            f"repetition_run={settings.repetition_run} with top_p={settings.top_p}: the rule looks "
            "at probabilities before the nucleus, and vLLM reports those after it; set top_p to 1, "
            "turn the rule off, or use the native generator"
        )


def sample_all(
    connection: ServerConnection,
    jobs: Sequence[Job],
    settings: SamplingSettings,
    deadline: Deadline,
    max_batch: int,
    progress: Progress | None,
) -> list[Sample]:
    """Return one sample a job, in their order; at most `max_batch` requests are in flight.

    Raises:
        GeneratorError: one request failed; the others are aborted.
        CheckpointError: a log-probability is not finite.
    """
    connection.resume()
    pool = ThreadPoolExecutor(min(max_batch, len(jobs)), "vllm-request")
    futures = [
        pool.submit(_sample, connection, prompt, settings, seed, deadline) for prompt, seed in jobs
    ]
    try:
        for finished, future in enumerate(as_completed(futures), start=1):
            future.result()
            if progress is not None:
                progress(finished, len(jobs))
    except BaseException:  # also a KeyboardInterrupt: requests in flight would hold the pool open
        connection.abort()
        raise
    finally:
        pool.shutdown(cancel_futures=True)
    return [future.result() for future in futures]


def _sample(
    connection: ServerConnection,
    prompt: Sequence[int],
    settings: SamplingSettings,
    seed: int,
    deadline: Deadline,
) -> Sample:
    streams = 0 < settings.repetition_run <= settings.max_new_tokens
    request = completion_request(prompt, settings, seed, stream=streams)
    if not streams:
        piece = read_piece(connection.post(PATH, request, deadline))
        return _checked(piece.tokens, piece.logprobs, piece.finish, settings)
    tokens: list[int] = []
    logprobs: list[float] = []
    finish: str | None = None
    with closing(connection.stream(PATH, request, deadline)) as events:
        for event in events:
            piece = read_piece(event)
            tokens += piece.tokens
            logprobs += piece.logprobs
            finish = piece.finish or finish
            kept = _repetition(logprobs, len(piece.tokens), settings)
            if kept is not None:
                tokens, logprobs = tokens[:kept], logprobs[:kept]
                # A stop token that completes a run counts as a stop.
                finish = "stop" if tokens[-1] in settings.stop_ids else "repetition"
                break
    return _checked(tokens, logprobs, finish, settings)


def _repetition(logprobs: list[float], new: int, settings: SamplingSettings) -> int | None:
    """Return how many tokens are kept when the rule fires within the last `new` ones."""
    skipped = max(0, len(logprobs) - new - settings.repetition_run + 1)
    probability_T = torch.tensor(logprobs[skipped:]).exp()
    fired = repetition_stop(probability_T, settings.repetition_run, settings.repetition_threshold)
    return None if fired is None else skipped + fired


def _checked(
    tokens: list[int], logprobs: list[float], finish: str | None, settings: SamplingSettings
) -> Sample:
    """Build a sample after checking that it ends as it says it does."""
    reason: FinishReason | None = None
    stopped = bool(tokens) and tokens[-1] in settings.stop_ids
    early = any(token in settings.stop_ids for token in tokens[:-1])
    full = len(tokens) == settings.max_new_tokens
    if stopped and (finish == "stop" or (finish == "length" and full)):
        # Older versions of vLLM call a stop token at the very end of the window "length".
        reason = "stop"
    elif finish == "length" and full:
        reason = "length"
    elif finish == "repetition":
        reason = "repetition"
    if reason is None or early or len(tokens) > settings.max_new_tokens:
        raise GeneratorError(
            f"vLLM says that {len(tokens)} tokens, the last of them {tokens[-1:]}, ended by "
            f"{finish!r}; with a window of {settings.max_new_tokens} and stop tokens "
            f"{list(settings.stop_ids)} that cannot be"
        )
    # The server decodes with another tokenizer than ours, so strings are looked for here: a sample
    # costs its whole length there, and ends where it should.
    kept = settings.stop_text.cut(tokens) if settings.stop_text is not None else None
    if kept is not None:
        return Sample(tokens[:kept], logprobs[:kept], "stop")
    return Sample(tokens, logprobs, reason)
