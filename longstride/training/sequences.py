"""Sampled sequences as padded tensors, cut into microbatches.

Dimension suffixes: B = sequences, T = tokens of the longest prompt with its answer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs
from schemas.rows import Rollout


@dataclass(frozen=True)
class Sequences:
    """Right-padded prompts with answers.

    Attributes:
        tokens_BT: token ids, 0 at padding.
        segments_BT: 0 at tokens, -1 at padding.
        response_BT: True where the *next* token is a response token, so that it lines up with
            log-probabilities that position t assigns to token t + 1.
    """

    tokens_BT: Tensor
    segments_BT: Tensor
    response_BT: Tensor


def pad_sequences(rollouts: Sequence[Rollout]) -> Sequences:
    """Pad prompts with their answers on the right."""
    longest = max(len(r.prompt_tokens) + len(r.tokens) for r in rollouts)
    tokens_BT = torch.zeros(len(rollouts), longest, dtype=torch.long)
    segments_BT = torch.full((len(rollouts), longest), -1, dtype=torch.long)
    response_BT = torch.zeros(len(rollouts), longest - 1, dtype=torch.bool)
    for row, rollout in enumerate(rollouts):
        sequence = rollout.prompt_tokens + rollout.tokens
        tokens_BT[row, : len(sequence)] = torch.tensor(sequence)
        segments_BT[row, : len(sequence)] = 0
        response_BT[row, len(rollout.prompt_tokens) - 1 : len(sequence) - 1] = True
    return Sequences(tokens_BT, segments_BT, response_BT)


def sequence_logprobs(
    model: HybridModel, sequences: Sequences, temperature: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities and entropies of next tokens, both [B, T-1] fp32, and the auxiliary loss.

    The temperature is the sampler's, so that at equal weights both sides agree.
    """
    device = model.embed.weight.device
    tokens_BT = sequences.tokens_BT.to(device)
    output = model(tokens_BT, sequences.segments_BT.to(device))
    logp_BT, entropy_BT = token_logprobs(
        model, output.hidden_BTD[:, :-1], tokens_BT[:, 1:], temperature
    )
    return logp_BT, entropy_BT, output.aux_loss


@dataclass(frozen=True)
class SequenceLogprobs:
    """`sequence_logprobs` as something that an engine's `forward` runs."""

    sequences: Sequences
    temperature: float

    def __call__(self, model: HybridModel) -> tuple[Tensor, Tensor, Tensor]:
        """Run it."""
        return sequence_logprobs(model, self.sequences, self.temperature)


def spread_over_responses(values: Sequence[Sequence[float | None]], response_BT: Tensor) -> Tensor:
    """Place per-token values of each answer at its positions; NaN where a value is missing."""
    spread_BT = torch.zeros(response_BT.shape, dtype=torch.float32)
    for row, row_values in enumerate(values):
        numbers = [float("nan") if value is None else value for value in row_values]
        spread_BT[row, response_BT[row]] = torch.tensor(numbers, dtype=torch.float32)
    return spread_BT


def microbatches(rollouts: Sequence[Rollout], maximum_tokens: int) -> Iterator[list[Rollout]]:
    """Group sequences of similar length so that each padded piece stays within the limit.

    The order is a function of the lengths only; losses do not depend on it.
    """
    ordered = sorted(rollouts, key=lambda r: len(r.prompt_tokens) + len(r.tokens))
    piece: list[Rollout] = []
    for rollout in ordered:
        length = len(rollout.prompt_tokens) + len(rollout.tokens)
        if piece and length * (len(piece) + 1) > maximum_tokens:
            yield piece
            piece = []
        piece.append(rollout)
    if piece:
        yield piece
