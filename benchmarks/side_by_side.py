"""Shared by the model benchmarks: one model under two implementations, timed alternately.

CPU seconds at one thread, because the machine may be shared; medians over repeats.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch

from longstride.model.architectures import settings_of
from longstride.model.hybrid import HybridModel
from longstride.model.kernels import operations
from longstride.model.names import to_transformers
from longstride.recipe.sizes import training_flops
from schemas.model import ModelConfig

CONFIG = ModelConfig(
    vocab_size=512, hidden_size=128, num_heads=4, num_kv_heads=2, head_dim=32, rotary_dim=32,
    num_experts=4, experts_per_token=2, expert_hidden_size=256, init_std=0.05,
)  # fmt: skip
"""Eight layers in M1's order, 3.9 million parameters; whole heads rotate, as transformers needs."""


@dataclass(frozen=True)
class Measured:
    """Medians of one comparison.

    Attributes:
        what: the case.
        rates: units of work a CPU second, by implementation.
        flops: operations of one unit of work.
    """

    what: str
    rates: dict[str, float]
    flops: float

    def row(self, peak: float) -> str:
        """One line of a table; shares are of the measured matrix-product peak."""
        ours, theirs = self.rates["longstride"], self.rates["transformers"]
        eager = self.rates.get("longstride, no C", float("nan"))
        share = 100 * ours * self.flops / peak
        return (
            f"{self.what:26} {ours:11,.0f} {eager:11,.0f} {theirs:12,.0f} {ours / theirs:7.2f} "
            f"{eager / theirs:7.2f} {share:7.0f}%"
        )


HEADER = (
    f"{'per CPU second':26} {'longstride':>11} {'without C':>11} {'transformers':>12} "
    f"{'ratio':>7} {'no C':>7} {'of peak':>8}"
)


def our_model() -> HybridModel:
    """Return the model of all comparisons."""
    model = HybridModel(CONFIG)
    model.initialise(0)
    return model


def their_model(model: HybridModel) -> Any:
    """Return the same weights in transformers' class, with block size 256 as published."""
    from transformers import MiniMaxConfig, MiniMaxForCausalLM

    settings = settings_of(model.config) | {"block_size": 256, "pad_token_id": 0}
    theirs = MiniMaxForCausalLM(MiniMaxConfig(**settings))
    missing, unexpected = theirs.load_state_dict(to_transformers(model), strict=False)
    if unexpected or any("decay" not in name and "slope" not in name for name in missing):
        raise ValueError(f"the two classes differ: missing {missing}, unexpected {unexpected}")
    return theirs


def their_cache(model: HybridModel) -> Any:
    """Return transformers' cache, told its length by a softmax layer.

    As it is, it asks layer 0, which is a lightning layer in M1's order and always answers 0.
    """
    from transformers.models.minimax.modeling_minimax import MiniMaxCache

    softmax = model.config.block_types.index("softmax")

    class PatchedCache(MiniMaxCache):  # type: ignore[misc]
        def get_seq_length(self, layer_idx: int = 0) -> int:
            return int(super().get_seq_length(softmax))

        def get_mask_sizes(self, query_length: Any, layer_idx: int) -> tuple[int, int]:
            return super().get_mask_sizes(query_length, softmax)  # type: ignore[no-any-return]

    return PatchedCache()


@contextmanager
def without_kernels() -> Iterator[None]:
    """Compute with PyTorch operations only."""
    with mock.patch.object(operations, "library", lambda: None):
        yield


def uncompiled(function: Callable[[], object]) -> Callable[[], None]:
    """Return the function with the C kernels switched off."""

    def run() -> None:
        with without_kernels():
            function()

    return run


def compare(
    what: str,
    functions: dict[str, Callable[[], object]],
    work: float,
    flops: float,
    repeats: int,
) -> Measured:
    """Alternate the implementations; return work a CPU second, by median."""
    times: dict[str, list[float]] = {name: [] for name in functions}
    for function in functions.values():
        function()
    for _ in range(repeats):
        for name, function in functions.items():
            begun = time.process_time()
            function()
            times[name].append(time.process_time() - begun)
    rates = {name: work / statistics.median(found) for name, found in times.items()}
    return Measured(what, rates, flops)


def peak_flops() -> float:
    """Operations a second of one core in a large fp32 matrix product, the best of several."""
    a, b = torch.randn(1024, 1024), torch.randn(1024, 1024)
    best = 0.0
    for _ in range(12):
        begun = time.process_time()
        a @ b
        best = max(best, 2 * 1024**3 / (time.process_time() - begun))
    return best


def forward_flops(window: int) -> float:
    """Operations of one token in a forward pass, by the rule of `training_flops`."""
    return training_flops(CONFIG, 1, window) / 3
