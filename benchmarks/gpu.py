"""Training, rollout and kernel throughput on one GPU, in under six minutes.

bf16 training tokens a second over windows, rollout tokens a second over batch sizes, and the
lightning kernel of flash-linear-attention (where installed) beside our chunked form: error and
speed. `--device cpu` runs the same at toy size, to see that the script works.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from longstride.model import fla
from longstride.model.chunked import chunked_attention
from longstride.model.hybrid import HybridModel
from longstride.model.layout import chunk_layout
from longstride.model.lightning import decay_slopes
from longstride.model.logprobs import token_logprobs
from longstride.recipe.sizes import parameter_counts, training_flops
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings
from schemas.model import ModelConfig, seven_to_one

LARGE = ModelConfig(
    vocab_size=32_768, hidden_size=1024, block_types=seven_to_one(16), num_heads=16, num_kv_heads=4,
    head_dim=64, rotary_dim=32, num_experts=8, experts_per_token=2, expert_hidden_size=2048,
)  # fmt: skip
"""About 0.9 billion parameters, 0.3 billion active."""
TOY = ModelConfig(hidden_size=64, head_dim=16, rotary_dim=8, expert_hidden_size=64)
BUDGET_SECONDS = 330.0


def main() -> None:
    """Measure within the time budget; print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    arguments = parser.parse_args()
    device = torch.device(arguments.device)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise SystemExit("torch sees no GPU; run this where one is, or try --device cpu")
    clock = Clock(time.monotonic() + BUDGET_SECONDS, device)
    config = LARGE if device.type == "cuda" else TOY
    with torch.device(device):
        model = HybridModel(config)
    model.initialise(0)
    total, active = parameter_counts(config)
    result: dict[str, Any] = {
        "device": torch.cuda.get_device_name() if device.type == "cuda" else "cpu",
        "torch": torch.__version__,
        "parameters": total,
        "active": active,
        "kernels": kernels(config, device, clock),
        "training": training(model, device, clock),
        "rollout": rollout(model, clock),
    }
    print(json.dumps(result, indent=1))


class Clock:
    """Times functions on a device until the budget ends."""

    def __init__(self, deadline: float, device: torch.device) -> None:
        self.deadline, self.device = deadline, device

    def _now(self) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize()
        return time.monotonic()

    def median(self, function: Callable[[], object], repeats: int = 5) -> float | None:
        """Median seconds over up to `repeats` runs after one to warm up; None without time left."""
        if self._now() > self.deadline:
            return None
        function()
        found = []
        for _ in range(repeats):
            begun = self._now()
            function()
            found.append(self._now() - begun)
            if self._now() > self.deadline:
                break
        return statistics.median(found)


def kernels(config: ModelConfig, device: torch.device, clock: Clock) -> list[dict[str, Any]]:
    """Forward and backward of the lightning operator: milliseconds, and error against fp32."""
    large = device.type == "cuda"
    rows = []
    slopes = decay_slopes(config.num_heads, 1, config.num_layers).to(device)
    for tokens in (4096, 65_536) if large else (256,):
        layout = chunk_layout(tokens, config.lightning_chunk)
        shape = (1, tokens, 3 * config.num_heads * config.head_dim)
        x = torch.randn(shape, device=device, dtype=torch.bfloat16, requires_grad=True)
        row: dict[str, Any] = {"tokens": tokens}
        with torch.no_grad():
            exact = chunked_attention(x.float(), slopes, config.num_heads, layout)
        forms = {"chunked": chunked_attention}
        if fla.usable(x):
            forms["fla"] = fla.fla_attention
        for name, form in forms.items():

            def run(form: Any = form, x: Any = x, layout: Any = layout) -> None:
                form(x, slopes, config.num_heads, layout).float().sum().backward()

            with torch.no_grad():
                error = form(x, slopes, config.num_heads, layout).float() - exact
            seconds = clock.median(run)
            row[name] = {
                "milliseconds": seconds and 1e3 * seconds,
                "relative_error": float(error.norm() / exact.norm()),
            }
        rows.append(row)
    return rows


def training(model: HybridModel, device: torch.device, clock: Clock) -> list[dict[str, Any]]:
    """Forward and backward in bf16; tokens and model operations a second, peak memory."""
    large = device.type == "cuda"
    model.to(torch.bfloat16)
    rows = []
    for batch, window in ((8, 4096), (1, 32_768), (1, 65_536)) if large else ((2, 64),):
        tokens = torch.randint(0, model.config.vocab_size, (batch, window), device=device)
        if large:
            torch.cuda.reset_peak_memory_stats()

        def run(tokens: torch.Tensor = tokens) -> None:
            logp, _ = token_logprobs(model, model(tokens).hidden_BTD[:, :-1], tokens[:, 1:])
            (-logp.mean()).backward()
            model.zero_grad(set_to_none=True)

        seconds = clock.median(run, repeats=3)
        done = batch * window
        rows.append(
            {
                "rows": batch,
                "window": window,
                "tokens_per_second": seconds and done / seconds,
                "teraflops": seconds
                and training_flops(model.config, done, window) / seconds / 1e12,
                "peak_gigabytes": torch.cuda.max_memory_allocated() / 1e9 if large else None,
            }
        )
    return rows


def rollout(model: HybridModel, clock: Clock) -> list[dict[str, Any]]:
    """Sampling in bf16 from shared prompts; new tokens a second."""
    large = model.embed.weight.is_cuda
    generator = torch.Generator().manual_seed(0)
    rows = []
    for batch in (32, 256) if large else (8,):
        new = 128 if large else 16
        prompts = torch.randint(0, model.config.vocab_size, (batch // 8, 128), generator=generator)
        sampler = NativeGenerator(model, max_batch=batch)
        settings = SamplingSettings(max_new_tokens=new)

        def run(sampler: Any = sampler, prompts: Any = prompts, settings: Any = settings) -> None:
            sampler.generate(prompts.tolist(), 8, settings, seed=0)

        seconds = clock.median(run, repeats=2)
        made = batch * new
        rows.append({"batch": batch, "tokens_per_second": seconds and made / seconds})
    return rows


if __name__ == "__main__":
    main()
