"""Model speed beside transformers' MiniMax class, in one run on identical sizes.

Reports tokens per CPU-second at one thread (the machine may be shared) as medians over repeats,
alternating the two, and their ratio.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable

import torch

from longstride.model.architectures import settings_of
from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs
from longstride.model.names import to_transformers
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings
from schemas.model import ModelConfig

CONFIG = ModelConfig(
    vocab_size=512, hidden_size=64, num_heads=4, num_kv_heads=2, head_dim=16, rotary_dim=16,
    num_experts=4, experts_per_token=2, expert_hidden_size=96,
)  # fmt: skip
PROMPT_TOKENS = 20


def main() -> None:
    """Measure, print a table and, with --json, a JSON object."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model = HybridModel(CONFIG)
    model.initialise(0)
    reference = _reference(model)
    rows = [
        _compare("train 64 x 32", _train_ours(model, 64, 32), _train_theirs(reference, 64, 32),
                 64 * 32, arguments.repeats),
        _compare("train 4 x 512", _train_ours(model, 4, 512), _train_theirs(reference, 4, 512),
                 4 * 512, arguments.repeats),
        _compare("generate 64 x 48", _generate_ours(model, 64, 48),
                 _generate_theirs(reference, 64, 48), 64 * 48, arguments.repeats),
    ]  # fmt: skip
    if arguments.json:
        print(json.dumps(rows, indent=1))
        return
    print(f"{'tokens per CPU-second':24} {'longstride':>12} {'transformers':>13} {'ratio':>7}")
    for row in rows:
        print(f"{row['what']:24} {row['ours']:12,.0f} {row['theirs']:13,.0f} {row['ratio']:7.2f}")


def _reference(model: HybridModel) -> torch.nn.Module:
    """The same weights in transformers' class."""
    from transformers import MiniMaxConfig, MiniMaxForCausalLM

    reference = MiniMaxForCausalLM(MiniMaxConfig(**settings_of(CONFIG)))
    weights = {name: tensor.detach() for name, tensor in to_transformers(model).items()}
    # Its decay tables are buffers that it computes itself; every weight must find its place.
    if unknown := reference.load_state_dict(weights, strict=False).unexpected_keys:
        raise ValueError(f"transformers' class has no place for {unknown}")
    return reference


def _compare(
    what: str, ours: Callable[[], None], theirs: Callable[[], None], tokens: int, repeats: int
) -> dict[str, float | str]:
    """Alternate the two; the ratio is of medians."""
    times: tuple[list[float], list[float]] = ([], [])
    ours()
    theirs()
    for _ in range(repeats):
        for run, found in zip((ours, theirs), times, strict=True):
            begun = time.process_time()
            run()
            found.append(time.process_time() - begun)
    mine, other = (tokens / statistics.median(found) for found in times)
    return {"what": what, "ours": mine, "theirs": other, "ratio": mine / other}


def _train_ours(model: HybridModel, rows: int, window: int) -> Callable[[], None]:
    tokens = torch.randint(8, CONFIG.vocab_size, (rows, window))

    def run() -> None:
        logp, _ = token_logprobs(model, model(tokens).hidden_BTD[:, :-1], tokens[:, 1:])
        (-logp.mean()).backward()
        model.zero_grad()

    return run


def _train_theirs(reference: torch.nn.Module, rows: int, window: int) -> Callable[[], None]:
    tokens = torch.randint(8, CONFIG.vocab_size, (rows, window))

    def run() -> None:
        reference(tokens, labels=tokens, use_cache=False).loss.backward()
        reference.zero_grad()

    return run


def _generate_ours(model: HybridModel, rows: int, new: int) -> Callable[[], None]:
    prompts = torch.randint(8, CONFIG.vocab_size, (rows, PROMPT_TOKENS)).tolist()
    generator = NativeGenerator(model, max_batch=rows)

    def run() -> None:
        generator.generate(prompts, 1, SamplingSettings(max_new_tokens=new), seed=0)

    return run


def _generate_theirs(reference: torch.nn.Module, rows: int, new: int) -> Callable[[], None]:
    prompts = torch.randint(8, CONFIG.vocab_size, (rows, PROMPT_TOKENS))

    def run() -> None:
        with torch.no_grad():
            reference.generate(  # type: ignore[operator]
                prompts, max_new_tokens=new, min_new_tokens=new, do_sample=True, top_k=0
            )

    return run


if __name__ == "__main__":
    main()
