"""The processes that share a training step, and how they agree on numbers."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

Part = TypeVar("Part")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone by default.

    With more than one, the default process group of torch.distributed must exist, and all methods
    are collective: every rank must call them in the same order.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = torch.device("cpu")

    @property
    def first(self) -> bool:
        """True in the one process that writes files."""
        return self.rank == 0

    def total(self, values: Sequence[float]) -> list[float]:
        """Sum numbers over ranks, in fp64."""
        if self.count == 1:
            return list(values)
        sums = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(sums)
        return [float(value) for value in sums]

    def any(self, flags: torch.Tensor) -> torch.Tensor:
        """Element-wise "or" of a bool tensor over ranks."""
        if self.count == 1:
            return flags
        counts = flags.to(device=self.device, dtype=torch.int32)
        dist.all_reduce(counts, op=dist.ReduceOp.MAX)
        return counts.bool().cpu()

    def barrier(self) -> None:
        """Wait until every rank is here."""
        if self.count > 1:
            dist.barrier()

    def share(self, parts: Iterable[Part]) -> list[tuple[Part, float]]:
        """The parts that this rank works on, each with its weight.

        Every rank gets equally many, as ZeRO 3 needs: where parts run out, the first one is
        repeated with weight 0. The cut into parts does not depend on the number of ranks.
        """
        everything = list(parts)
        own = [(part, 1.0) for part in everything[self.rank :: self.count]]
        rounds = -(-len(everything) // self.count)
        return own + [(everything[0], 0.0)] * (rounds - len(own))
