"""The processes that share a training step, and how they agree on numbers."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist

Part = TypeVar("Part")
_CPU = torch.device("cpu")


def _encode(value: Any) -> torch.Tensor:
    # Numbers survive JSON exactly, and nothing that another process sent is ever unpickled.
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _decode(data: torch.Tensor) -> Any:
    return json.loads(bytes(data.cpu().tolist()))


@dataclass(frozen=True)
class Ranks:
    """This process among those that train together; alone by default.

    With more than one, the default process group of torch.distributed must exist, and all methods
    are collective: every rank must call them in the same order.
    """

    rank: int = 0
    count: int = 1
    device: torch.device = _CPU

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

    def gather(self, value: Any) -> list[Any]:
        """JSON values of all ranks, in order of rank."""
        if self.count == 1:
            return [value]
        own = _encode(value).to(self.device)
        sizes = [torch.zeros(1, dtype=torch.int64, device=self.device) for _ in range(self.count)]
        dist.all_gather(sizes, torch.tensor([len(own)], dtype=torch.int64, device=self.device))
        longest = max(int(size) for size in sizes)
        padded = torch.zeros(longest, dtype=torch.uint8, device=self.device)
        padded[: len(own)] = own
        everything = [torch.zeros_like(padded) for _ in range(self.count)]
        dist.all_gather(everything, padded)
        return [_decode(data[: int(size)]) for data, size in zip(everything, sizes, strict=True)]

    def from_first(self, value: Any) -> Any:
        """The first rank's JSON value, on every rank; what others pass is ignored."""
        if self.count == 1:
            return value
        return self.gather(value if self.first else None)[0]

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
        if not everything:
            return []
        own = [(part, 1.0) for part in everything[self.rank :: self.count]]
        rounds = -(-len(everything) // self.count)
        return own + [(everything[0], 0.0)] * (rounds - len(own))
