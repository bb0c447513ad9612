"""Our model beside transformers' MiniMax class, in one run, on the same weights.

Training, decoding, a rollout with ragged lengths, and the lightning layer alone. Prints tables with
the floors that we hold ourselves to; `--json` prints the numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any
from unittest import mock

import numpy as np
import torch
from side_by_side import (
    CONFIG,
    HEADER,
    Measured,
    compare,
    forward_flops,
    our_model,
    peak_flops,
    their_cache,
    their_model,
    uncompiled,
)
from torch import Tensor

from longstride.model.decoding import decode_step, prefill
from longstride.model.hybrid import HybridModel
from longstride.model.kernels import operations
from longstride.model.layout import chunk_layout
from longstride.model.logprobs import token_logprobs
from longstride.model.stepping import native_step
from longstride.recipe.sizes import training_flops
from longstride.rollout import native
from longstride.rollout.protocol import SamplingSettings

TRAINING = ((16, 256), (4, 1024), (1, 4096), (1, 16_384))
BATCHES = (1, 16, 64, 256)
LENGTHS = (1024, 4096, 16_384, 65_536)
PROMPTS, SAMPLES, LONGEST = 16, 8, 256
FLOORS = {
    "train 16 x 256": 1.3,
    "train 1 x 16384": 1.3,
    "decode, 64 rows": 2.3,
    "rollout": 6.0,
    "lightning 65536": 8.0,
}
"""Least ratio to transformers."""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", choices=["train", "decode", "rollout", "lightning", "compile"])
    parser.add_argument("--json", action="store_true", help="print JSON instead of tables")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    ours = our_model()
    theirs = their_model(ours)
    peak = peak_flops()
    parts: dict[str, Callable[[HybridModel, Any, int], Iterator[Measured]]] = {
        "train": training, "decode": decoding, "rollout": rollout, "lightning": lightning,
        "compile": compiled,
    }  # fmt: skip
    if not arguments.json:
        print(f"matrix-product peak of one core: {peak / 1e9:.0f} GFLOP/s (fp32)\n{HEADER}")
    measured = []
    chosen = [arguments.only] if arguments.only else [n for n in parts if n != "compile"]
    for name in chosen:
        for row in parts[name](ours, theirs, arguments.repeats):
            measured.append(row)
            if not arguments.json:
                print(row.row(peak), flush=True)
    if arguments.json:
        print(json.dumps({"peak_flops": peak, "measured": [asdict(m) for m in measured]}, indent=1))
    else:
        _print_floors(measured)


def _print_floors(measured: list[Measured]) -> None:
    print("\nfloors (ratio to transformers)")
    for row in measured:
        if row.what in FLOORS:
            ratio = row.rates["longstride"] / row.rates["transformers"]
            verdict = "met" if ratio >= FLOORS[row.what] else "MISSED"
            print(f"  {row.what:24} {ratio:6.2f}  floor {FLOORS[row.what]:.1f}  {verdict}")
    costs = {r.what: 1 / r.rates["longstride"] for r in measured if r.what.startswith("lightning")}
    if costs:
        spread = max(costs.values()) / min(costs.values())
        print(f"  lightning cost a token, longest to shortest: at most {spread:.2f} x  floor 1.20")


def _implementations(
    ours: Callable[[], object], theirs: Callable[[], object]
) -> dict[str, Callable[[], object]]:
    return {"longstride": ours, "longstride, no C": uncompiled(ours), "transformers": theirs}


def training(model: HybridModel, reference: Any, repeats: int) -> Iterator[Measured]:
    """Forward and backward of next-token loss; tokens a CPU second."""
    for rows, window in TRAINING:
        tokens = torch.randint(8, CONFIG.vocab_size, (rows, window))

        def ours(tokens: Tensor = tokens) -> None:
            logp, _ = token_logprobs(model, model(tokens).hidden_BTD[:, :-1], tokens[:, 1:])
            (-logp.mean()).backward()
            model.zero_grad()

        def theirs(tokens: Tensor = tokens) -> None:
            reference(tokens, labels=tokens, use_cache=False).loss.backward()
            reference.zero_grad()

        flops = training_flops(CONFIG, 1, window)
        what = f"train {rows} x {window}"
        yield compare(what, _implementations(ours, theirs), rows * window, flops, repeats)


def compiled(model: HybridModel, reference: Any, repeats: int) -> Iterator[Measured]:
    """The same training step through `torch.compile`, C kernels off: is it worth its minutes?"""
    rows, window = TRAINING[0]
    tokens = torch.randint(8, CONFIG.vocab_size, (rows, window))
    faster = torch.compile(model)

    def ours() -> None:
        logp, _ = token_logprobs(model, faster(tokens).hidden_BTD[:, :-1], tokens[:, 1:])
        (-logp.mean()).backward()
        model.zero_grad()

    def theirs() -> None:
        reference(tokens, labels=tokens, use_cache=False).loss.backward()
        reference.zero_grad()

    begun = time.monotonic()
    ours()
    print(f"torch.compile took {time.monotonic() - begun:.0f} s", file=sys.stderr)
    flops = training_flops(CONFIG, 1, window)
    what = f"compiled {rows} x {window}"
    functions = {"longstride": ours, "transformers": theirs}
    yield compare(what, functions, rows * window, flops, repeats)


def decoding(model: HybridModel, reference: Any, repeats: int) -> Iterator[Measured]:
    """One token a row from a cache of some tens of tokens, logits included; tokens a CPU second."""
    steps, prompt = 16, 16
    for rows in BATCHES:
        prompts = torch.randint(8, CONFIG.vocab_size, (rows, prompt))
        token = torch.randint(8, CONFIG.vocab_size, (rows,))
        with torch.inference_mode():
            state = prefill(model, prompts, torch.full((rows,), prompt))
        cache = their_cache(model)
        with torch.inference_mode():
            reference(prompts, past_key_values=cache, use_cache=True)

        # Packed once, as a generator does for all steps of a call.
        native = native_step(model)

        def ours(state: Any = state, token: Tensor = token, native: Any = native) -> None:
            fast = native is not None and operations.usable(model.embed.weight)
            with torch.inference_mode():
                for _ in range(steps):
                    native(state, token) if fast else decode_step(model, state, token)
                    model.logits(state.hidden_RX)

        def theirs(cache: Any = cache, token: Tensor = token) -> None:
            with torch.inference_mode():
                for _ in range(steps):
                    position = torch.full((len(token), 1), cache.get_seq_length())
                    reference(
                        token[:, None], past_key_values=cache, position_ids=position, use_cache=True
                    )

        what = f"decode, {rows} rows"
        flops = forward_flops(2 * prompt)
        yield compare(what, _implementations(ours, theirs), rows * steps, flops, repeats)


def ragged_lengths() -> np.ndarray:
    """Answer lengths of all samples: log-normal, mean about 62, at most 256 tokens."""
    drawn = np.random.default_rng(0).lognormal(mean=3.8, sigma=0.85, size=PROMPTS * SAMPLES)
    return np.clip(drawn.round(), 4, LONGEST).astype(int)


def rollout(model: HybridModel, reference: Any, repeats: int) -> Iterator[Measured]:
    """16 prompts x 8 samples that end at given lengths; useful tokens a CPU second."""
    rng = np.random.default_rng(1)
    prompts = [
        rng.integers(8, CONFIG.vocab_size, n).tolist() for n in rng.integers(40, 129, PROMPTS)
    ]
    lengths = ragged_lengths()

    class Ending(native._Batch):
        """Ends each sample at its given length, as a stop token would."""

        def _record(self, drawn: Any) -> None:
            super()._record(drawn)
            reached = self.count_R[: self.used].numpy() >= lengths[self.job_R[: self.used]]
            self.reason_R[: self.used][torch.from_numpy(reached)] = 0

    def ours() -> None:
        with mock.patch.object(native, "_Batch", Ending):
            generator = native.NativeGenerator(model)
            groups = generator.generate(
                prompts, SAMPLES, SamplingSettings(max_new_tokens=LONGEST), seed=0
            )
        made = [len(sample.tokens) for group in groups for sample in group]
        if made != lengths.tolist():
            raise AssertionError("the samples do not have the lengths asked for")

    functions = _implementations(ours, lambda: _their_rollout(model, reference, prompts, lengths))
    few = max(1, repeats // 2)
    yield compare("rollout", functions, float(lengths.sum()), forward_flops(128), few)


def _their_rollout(
    model: HybridModel, reference: Any, prompts: list[list[int]], lengths: np.ndarray
) -> None:
    """`generate` with left padding; rows that ended idle along until the longest has."""
    from transformers import StoppingCriteria

    width = max(map(len, prompts))
    tokens = torch.tensor([[0] * (width - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (width - len(p)) + [1] * len(p) for p in prompts])
    wanted = torch.from_numpy(lengths)

    class Ending(StoppingCriteria):  # type: ignore[misc]
        def __call__(self, input_ids: Tensor, scores: Any, **_: Any) -> Tensor:
            return input_ids.shape[1] - width >= wanted

    with torch.inference_mode():
        reference.generate(
            tokens, attention_mask=mask, past_key_values=their_cache(model), do_sample=True,
            top_k=0, num_return_sequences=SAMPLES, max_new_tokens=LONGEST,
            stopping_criteria=[Ending()],
        )  # fmt: skip


def lightning(model: HybridModel, reference: Any, repeats: int) -> Iterator[Measured]:
    """The lightning operator alone, forward and backward; tokens a CPU second.

    Theirs includes its four projections, which ours is given too.
    """
    layer = 1
    theirs_layer = reference.model.layers[layer].self_attn
    ours_layer: Any = model.blocks[layer].attention  # type: ignore[union-attr]
    for tokens in LENGTHS:
        x = torch.randn(1, tokens, CONFIG.hidden_size, requires_grad=True)
        layout = chunk_layout(tokens, CONFIG.lightning_chunk)

        def ours(x: Tensor = x, layout: Any = layout) -> None:
            ours_layer(x, layout).sum().backward()
            x.grad = None

        def theirs(x: Tensor = x) -> None:
            theirs_layer(x, position_embeddings=None, attention_mask=None)[0].sum().backward()
            x.grad = None

        few = 1 if tokens > 20_000 else repeats
        flops = 6.0 * 5 * CONFIG.hidden_size**2 + 12 * CONFIG.hidden_size * CONFIG.head_dim
        what = f"lightning {tokens}"
        yield compare(what, _implementations(ours, theirs), tokens, flops, few)


if __name__ == "__main__":
    main()
