"""Runs the cases against a loss function and says where it differs, and what that looks like."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from longstride.rl.conformance.cases import CASES, Case
from longstride.rl.conformance.reference import BUGS, Answer, answer

Loss = Callable[..., Tensor]
"""A loss under the contract of docs/conformance.md: keyword arguments in, a scalar out."""
Status = Literal["agrees", "differs", "cannot express", "fails"]
TOLERANCE = {torch.float64: 1e-10, torch.float32: 1e-5}
"""Largest difference; relative to the largest expected value in float32."""
PEER_TOLERANCE = 1e-7
"""For frameworks: some add 1e-8 to a denominator that cannot be zero."""


class CannotExpress(Exception):
    """A loss has no setting for what a case asks; raised by it, and no disagreement."""


@dataclass(frozen=True)
class Outcome:
    """What a loss did in one case."""

    case: Case
    status: Status
    difference: float
    """Largest absolute difference in loss or gradient; infinite when either is not finite."""
    note: str
    """What the difference looks like, or what went wrong."""


def check_all(
    loss: Loss,
    cases: Sequence[Case] = CASES,
    dtype: torch.dtype = torch.float64,
    tolerance: float | None = None,
) -> list[Outcome]:
    """Every case against a loss; the tolerance is that of the type unless given."""
    return [check(case, loss, dtype, tolerance) for case in cases]


def check(
    case: Case, loss: Loss, dtype: torch.dtype = torch.float64, tolerance: float | None = None
) -> Outcome:
    """One case against a loss: its value, and its gradient to every log-probability.

    An update that is cut into microbatches is asked for piece by piece, and the pieces are added.
    """
    value, gradient = 0.0, list[list[float]]()
    for arguments in _pieces(case, dtype):
        logp_BT = arguments["logp"]
        try:
            result = loss(**arguments)
        except CannotExpress as reason:
            return Outcome(case, "cannot express", 0.0, str(reason))
        except Exception as error:
            # Whatever a foreign function raises is its outcome in this case.
            return Outcome(case, "fails", math.inf, f"{type(error).__name__}: {error}")
        if not isinstance(result, Tensor) or result.numel() != 1:
            return Outcome(case, "fails", math.inf, f"returned {result!r}, not a scalar tensor")
        if result.requires_grad:
            result.sum().backward()  # type: ignore[no-untyped-call]
        value += float(result.detach())
        grad_BT = logp_BT.grad if logp_BT.grad is not None else torch.zeros_like(logp_BT)
        gradient += grad_BT.double().tolist()
    found = Answer(value, gradient)
    expected = case.expected
    difference = distance(found, expected)
    limit = TOLERANCE[dtype] if tolerance is None else tolerance
    if dtype == torch.float32:
        limit *= max(1.0, _largest(expected))
    if difference <= limit:
        return Outcome(case, "agrees", difference, "")
    return Outcome(case, "differs", difference, looks_like(case, found, limit))


def looks_like(case: Case, found: Answer, limit: float) -> str:
    """Names of the known bugs that give just this value."""
    if not math.isfinite(distance(found, found)):
        return "not finite: is padding, or a lost probability, multiplied out?"
    names = [
        bug
        for bug in BUGS
        if distance(case.expected, wrong := answer(case.inputs, case.settings, bug)) > limit
        and distance(found, wrong) <= limit
    ]
    return "looks like: " + " or ".join(names) if names else ""


def distance(one: Answer, other: Answer) -> float:
    """Largest absolute difference in loss or gradient; infinite where either is not finite."""
    pairs = [(one.loss, other.loss)]
    for row, other_row in zip(one.grad_logp, other.grad_logp, strict=True):
        pairs += zip(row, other_row, strict=True)
    if not all(math.isfinite(a) and math.isfinite(b) for a, b in pairs):
        return math.inf
    return max(abs(a - b) for a, b in pairs)


def _largest(found: Answer) -> float:
    return max(abs(found.loss), *(abs(value) for row in found.grad_logp for value in row))


def _pieces(case: Case, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """Arguments of each call, as docs/conformance.md lists them."""
    inputs = case.inputs
    count = len(inputs.logp)
    for first, last in pairwise([0, *inputs.cut, count]):
        part = slice(first, last)

        def tensor(rows: Sequence[Any], part: slice = part) -> Tensor:
            return torch.tensor(rows[part], dtype=dtype)

        yield {
            "logp": tensor(inputs.logp).requires_grad_(),
            "old_logp": tensor(inputs.old_logp),
            "rollout_logp": tensor(inputs.rollout_logp),
            "advantages": tensor(inputs.advantages),
            "mask": torch.tensor(inputs.mask[part], dtype=torch.bool),
            "groups": torch.tensor(inputs.groups[part], dtype=torch.int64),
            "update_tokens": sum(sum(row) for row in inputs.mask),
            "update_sequences": count,
            "algorithm": case.settings,
        }
