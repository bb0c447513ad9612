"""A copy of everything that an optimizer step changes, in host memory, to go back to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

Snapshot = dict[str, Tensor]


def take_snapshot(tensors: Iterable[tuple[str, Tensor]]) -> Snapshot:
    """Copies of named tensors."""
    return {name: value.detach().to("cpu", copy=True) for name, value in tensors}


@torch.no_grad()
def restore_snapshot(tensors: Iterable[tuple[str, Tensor]], snapshot: Snapshot) -> None:
    """Write a snapshot back in place.

    A tensor that did not exist yet when it was taken is optimizer state before the first step,
    which is zero.
    """
    for name, value in tensors:
        if name in snapshot:
            value.copy_(snapshot[name])
        else:
            value.zero_()


def state_tensors(
    states: Iterable[tuple[str, Mapping[str, Tensor]]],
) -> Iterator[tuple[str, Tensor]]:
    """Optimizer state as named tensors, given each parameter's name and its state."""
    for name, state in states:
        for key, value in state.items():
            yield f"{name}/{key}", value
