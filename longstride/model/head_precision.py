"""Emulation of a low-precision output head, to see what it does to probabilities.

Two kernels that are equal on paper differ in the order in which they add and in where they round.
The trainer's head adds a whole row in fp32; the sampler's adds it in four pieces (split-K), as fast
inference kernels do. With a bf16 head the pieces and the logits are rounded to bf16, with an fp32
head they are not. All arithmetic here is fp32 with explicit rounding, so it is deterministic and
runs anywhere.

Legend: N tokens, X hidden width, V vocabulary.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Precision = Literal["bfloat16", "float32"]
_PIECES = 4


class Sides(NamedTuple):
    """Log-probabilities of the same sampled tokens, [N] fp32."""

    trainer_N: Tensor
    sampler_N: Tensor


def round_bfloat16(x: Tensor) -> Tensor:
    """Return the fp32 tensor rounded to the nearest bf16 values, still fp32."""
    return x.to(torch.bfloat16).float()


def trainer_logits(hidden_NX: Tensor, weight_VX: Tensor, precision: Precision) -> Tensor:
    """Return logits [N, V] added over the whole row at once."""
    if precision == "float32":
        return hidden_NX @ weight_VX.t()
    return round_bfloat16(hidden_NX @ round_bfloat16(weight_VX).t())


def sampler_logits(hidden_NX: Tensor, weight_VX: Tensor, precision: Precision) -> Tensor:
    """Return logits [N, V] added in four pieces, each rounded when the head is bf16."""
    low = precision == "bfloat16"
    weight = round_bfloat16(weight_VX) if low else weight_VX
    pieces = zip(hidden_NX.chunk(_PIECES, dim=1), weight.chunk(_PIECES, dim=1), strict=True)
    total = torch.zeros(hidden_NX.shape[0], weight_VX.shape[0])
    for hidden, part in pieces:
        total = total + (round_bfloat16(hidden @ part.t()) if low else hidden @ part.t())
        total = round_bfloat16(total) if low else total
    return total


def disturb(hidden_NX: Tensor, share: float, generator: torch.Generator) -> Tensor:
    """Move a share of bf16 values by one unit in the last place: noise of the layers below.

    Args:
        hidden_NX: values that bf16 holds exactly.
        share: of elements that move, up or down with equal probability.
        generator: source of the choice.
    """
    draw = torch.rand(hidden_NX.shape, generator=generator)
    bits = hidden_NX.to(torch.bfloat16).view(torch.int16).int()
    step = (draw < share / 2).int() - (draw > 1 - share / 2).int()
    return (bits + step).to(torch.int16).view(torch.bfloat16).float()


def compare_sides(
    hidden_NX: Tensor,
    weight_VX: Tensor,
    precision: Precision,
    generator: torch.Generator,
    disturbed_share: float = 0.0,
) -> Sides:
    """Sample one token a row from the sampler's head and return what both sides think of it.

    Args:
        hidden_NX: final hidden states; rounded to bf16 first, as a bf16 model hands them over.
        weight_VX: fp32 head.
        precision: of both heads.
        generator: for sampling and for the disturbance.
        disturbed_share: share of hidden values that reach the sampler one bf16 unit off.
    """
    hidden = round_bfloat16(hidden_NX)
    theirs = disturb(hidden, disturbed_share, generator) if disturbed_share else hidden
    sampler_NV = sampler_logits(theirs, weight_VX, precision).log_softmax(-1)
    trainer_NV = trainer_logits(hidden, weight_VX, precision).log_softmax(-1)
    token_N1 = torch.multinomial(sampler_NV.exp(), 1, generator=generator)
    return Sides(trainer_NV.gather(1, token_N1)[:, 0], sampler_NV.gather(1, token_N1)[:, 0])
