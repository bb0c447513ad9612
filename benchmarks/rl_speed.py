"""A CISPO training loop beside TRL's GRPOTrainer, per CPU second, on the same weights.

Both sides sample the same number of answers of the same length to prompts of the same length,
recompute the log-probabilities of the policy that sampled, and take the same number of updates on
them. Each side runs in a process of its own, the two take turns, one thread each; the first batch
of a process warms up and does not count. Ours is the path of a run: the native generator, the
judged rollouts, `recompute_old_policy`, the check of sampler against trainer, and `update` with
its audits. Needs TRL in an environment of its own: `make setup-peers`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from longstride.model.architectures import settings_of
from longstride.model.hybrid import HybridModel
from longstride.model.names import to_transformers
from longstride.rl.advantages import group_advantages
from longstride.rl.objectives import objective_of
from longstride.rl.reflection import ReflectionMatcher
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import Sample, SamplingSettings
from longstride.training.engine import TorchEngine
from longstride.training.guarding import UpdateGuard
from longstride.training.updating import (
    UpdateSettings,
    check_agreement,
    recompute_old_policy,
    split_updates,
    update,
)
from schemas.algorithms import CispoConfig
from schemas.engine import TorchEngine as EngineConfig
from schemas.model import ModelConfig
from schemas.rows import Rollout
from schemas.stages import OptimizerConfig

WEIGHT_CAP, LEARNING_RATE = 5.0, 1e-4
GROUP, PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS = 8, 4, 16, 96
MODELS = {
    "llama-like": ModelConfig(
        vocab_size=512, hidden_size=256, block_types=["softmax"] * 8, num_heads=8, num_kv_heads=4,
        head_dim=32, rotary_dim=32, num_experts=1, experts_per_token=1, expert_hidden_size=512,
        residual="prenorm", router_aux_loss_coef=0.0, init_std=0.05,
    ),
    "hybrid": ModelConfig(
        vocab_size=512, hidden_size=256, num_heads=8, num_kv_heads=4, head_dim=32, rotary_dim=32,
        num_experts=4, experts_per_token=2, expert_hidden_size=256, init_std=0.05,
    ),
}  # fmt: skip
"""Eight layers each; whole heads rotate, as transformers' MiniMax needs."""
FLOORS = {"hybrid": (6.0, 2.0), "llama-like": (3.0, 1.5)}
"""Least ratio to TRL, of sampling and of updates."""
_QUIET = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "passive", "TOKENIZERS_PARALLELISM": "false"}


@dataclass(frozen=True)
class Side:
    """What one side did, medians over repeats."""

    sampling_tokens: float
    """Sampled tokens a CPU second."""
    update_tokens: float
    """Trained tokens a CPU second; everything after sampling counts as update."""
    seconds_per_update: float
    """CPU seconds."""
    peak_mib: float
    """Largest resident memory of the process."""
    working_mib: float
    """The same above what imports and weights take."""


def main() -> None:
    """Measure and print; with `--side` be one of the processes that are measured."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--peer-python", default=_peer(), help="a Python that has TRL")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--batches", type=int, default=2, help="counted batches of a process")
    parser.add_argument("--updates", type=int, nargs="+", default=[4, 16])
    parser.add_argument("--only", choices=list(MODELS))
    parser.add_argument("--json", type=Path, help="also write the numbers to this file")
    parser.add_argument("--side", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(_our_side(arguments.side)))
        return
    found: dict[str, dict[str, Side]] = {}
    print(_title(), flush=True)
    for name in [arguments.only] if arguments.only else MODELS:
        for updates in arguments.updates:
            sides = _compare(name, updates, arguments)
            found[f"{name}, {updates} updates"] = sides
            _print(name, updates, sides)
    if arguments.json:
        rows = {case: {s: asdict(v) for s, v in sides.items()} for case, sides in found.items()}
        arguments.json.write_text(json.dumps(rows, indent=1) + "\n")


def _peer() -> str:
    own = Path(".venv-peers/bin/python")
    return str(own) if own.exists() else sys.executable


def _title() -> str:
    return (
        f"{PROMPTS} prompts x {GROUP} answers, {PROMPT_TOKENS} + {ANSWER_TOKENS} tokens, 8 layers, "
        f"width 256, fp32, one thread, load {os.getloadavg()[0]:.1f}\n"
        f"{'per CPU second':40} {'longstride':>11} {'TRL':>11} {'ratio':>7} {'floor':>6}"
    )


def _print(name: str, updates: int, sides: dict[str, Side]) -> None:
    ours, theirs = sides["longstride"], sides["TRL"]
    sampling, training = FLOORS[name]
    rows = [
        ("sampled tokens", ours.sampling_tokens, theirs.sampling_tokens, sampling),
        ("trained tokens", ours.update_tokens, theirs.update_tokens, training),
    ]
    print(f"{name}, {updates} updates a batch")
    for what, mine, other, floor in rows:
        ratio = mine / other
        verdict = "met" if ratio >= floor else "MISSED"
        print(f"  {what:38} {mine:11,.0f} {other:11,.0f} {ratio:7.2f} {floor:6.1f} {verdict}")
    costs = [
        ("CPU ms a sampled token", 1e3 / ours.sampling_tokens, 1e3 / theirs.sampling_tokens),
        ("CPU ms an update", 1e3 * ours.seconds_per_update, 1e3 * theirs.seconds_per_update),
        ("peak memory, MiB", ours.peak_mib, theirs.peak_mib),
        ("peak memory above the start, MiB", ours.working_mib, theirs.working_mib),
    ]
    for what, mine, other in costs:
        print(f"  {what:38} {mine:11,.2f} {other:11,.2f} {other / mine:7.2f}")
    sys.stdout.flush()


def _compare(name: str, updates: int, arguments: argparse.Namespace) -> dict[str, Side]:
    """Let both sides take turns on one case."""
    here = Path(__file__).resolve()
    runs: dict[str, list[dict[str, Any]]] = {"longstride": [], "TRL": []}
    with tempfile.TemporaryDirectory() as folder:
        _write_case(name, updates, arguments.batches, Path(folder))
        commands = {
            "longstride": [sys.executable, str(here), "--side", folder],
            "TRL": [arguments.peer_python, str(here.with_name("rl_speed_trl.py")), folder],
        }
        for _ in range(arguments.repeats):
            for side, command in commands.items():
                runs[side].append(_run(command))
    return {side: _medians(results, updates) for side, results in runs.items()}


def _write_case(name: str, updates: int, batches: int, folder: Path) -> None:
    config = MODELS[name]
    model = HybridModel(config)
    model.initialise(0)
    rng = random.Random(0)
    case = {
        "name": name,
        "settings": settings_of(config),
        "prompts": [
            [rng.randrange(8, config.vocab_size) for _ in range(PROMPT_TOKENS)]
            for _ in range(PROMPTS * (batches + 1))
        ],
        "prompts_per_batch": PROMPTS,
        "group": GROUP,
        "answer": ANSWER_TOKENS,
        "updates": updates,
        "batches": batches,
        "weight_cap": WEIGHT_CAP,
        "learning_rate": LEARNING_RATE,
    }
    (folder / "case.json").write_text(json.dumps(case))
    tensors = {key: value.detach().contiguous() for key, value in to_transformers(model).items()}
    save_file(tensors, folder / "model.safetensors")


def _run(command: list[str]) -> dict[str, Any]:
    done = subprocess.run(
        command, env=os.environ | _QUIET, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(f"{command} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])  # type: ignore[no-any-return]


def _medians(results: Sequence[dict[str, Any]], updates: int) -> Side:
    def middle(values: list[float]) -> float:
        return statistics.median(values)

    tokens = results[0]["sampled_tokens"]
    sampling = middle([s for one in results for s in one["sampling_seconds"]])
    training = middle([s for one in results for s in one["update_seconds"]])
    return Side(
        sampling_tokens=tokens / sampling,
        update_tokens=tokens / training,
        seconds_per_update=training / updates,
        peak_mib=middle([one["peak_mib"] for one in results]),
        working_mib=middle([one["peak_mib"] - one["imported_mib"] for one in results]),
    )


def _our_side(folder: Path) -> dict[str, Any]:
    """Train for the batches of the case; the first does not count."""
    torch.set_num_threads(1)
    case = json.loads((folder / "case.json").read_text())
    model = HybridModel(MODELS[case["name"]])
    model.initialise(0)
    # Pieces as large as TRL's microbatches, which are one update each.
    width = PROMPT_TOKENS + case["answer"]
    rows = case["prompts_per_batch"] * case["group"] // case["updates"]
    engine = TorchEngine(model, OptimizerConfig(), EngineConfig(microbatch_tokens=rows * width))
    generator = NativeGenerator(model)
    imported = _peak()
    sampling, training = [], []
    for batch in range(case["batches"] + 1):
        begun = time.process_time()
        first = batch * case["prompts_per_batch"]
        prompts = case["prompts"][first : first + case["prompts_per_batch"]]
        generator.sync(engine.sampling_model(), batch)
        groups = generator.generate(prompts, case["group"], _settings(case["answer"]), seed=batch)
        sampled = time.process_time()
        _learn(engine, _judged(prompts, groups, batch, case["answer"]), case["updates"])
        sampling.append(sampled - begun)
        training.append(time.process_time() - sampled)
    return {
        "sampling_seconds": sampling[1:],
        "update_seconds": training[1:],
        "sampled_tokens": sum(len(sample.tokens) for group in groups for sample in group),
        "peak_mib": _peak(),
        "imported_mib": imported,
    }


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _settings(answer: int) -> SamplingSettings:
    """Answers of one length, with the repetition rule on, as in a run; it never fires here."""
    return SamplingSettings(max_new_tokens=answer, repetition_run=answer)


def _judged(
    prompts: list[list[int]], groups: list[list[Sample]], batch: int, window: int
) -> list[Rollout]:
    """Rollouts with rewards and advantages; the reward is the share of odd tokens."""
    rollouts = []
    for number, (prompt, samples) in enumerate(zip(prompts, groups, strict=True)):
        rewards = [sum(t % 2 for t in sample.tokens) / len(sample.tokens) for sample in samples]
        advantages = group_advantages(rewards)
        if advantages is None:
            raise SystemExit(f"group {number} has no spread in its rewards")
        for index, sample in enumerate(samples):
            rollouts.append(
                Rollout(
                    prompt_id=f"p{number}", group=number, sample=index, batch=batch,
                    prompt_tokens=prompt, tokens=sample.tokens, logprobs=list(sample.logprobs),
                    text=" ".join(f"t{token}" for token in sample.tokens),
                    finish_reason=sample.finish_reason, reward=rewards[index],
                    advantage=advantages[index], window=window,
                )
            )  # fmt: skip
    return rollouts


def _learn(engine: TorchEngine, rollouts: list[Rollout], updates: int) -> None:
    """All updates of one batch, as a round takes them."""
    settings = UpdateSettings(
        objective=objective_of(CispoConfig(is_weight_cap=WEIGHT_CAP)),
        updates=updates,
        learning_rate=LEARNING_RATE,
        grad_clip=1.0,
        temperature=1.0,
        minimum_correlation=0.99999,
    )
    recompute_old_policy(engine, rollouts, settings.temperature)
    check_agreement(rollouts, settings.minimum_correlation)
    guard = UpdateGuard(3, None)
    matcher = ReflectionMatcher(settings.audit.reflection, lambda token: b" t%d" % token)
    for index, minibatch in enumerate(split_updates(rollouts, updates, seed=0)):
        update(engine, minibatch, settings, guard, matcher, step=index, off_policy_round=index + 1)


if __name__ == "__main__":
    main()
