"""Time and money of a recipe on a named number of GPUs, from operations and stated assumptions."""

from __future__ import annotations

from dataclasses import dataclass

from longstride.recipe.generation_cost import TokenCost, cost_of
from longstride.recipe.sizes import parameter_counts, training_flops
from longstride.recipe.stages import extension_names
from schemas.recipe import Recipe


@dataclass(frozen=True)
class Gpu:
    """An accelerator's data sheet: dense bf16, without sparsity."""

    name: str
    flops: float
    """Operations a second."""
    bandwidth: float
    """Bytes a second of its memory."""
    memory: float
    """Bytes of its memory."""


GPUS = {
    gpu.name: gpu
    for gpu in (
        Gpu("a100", 312e12, 2.039e12, 80e9),
        Gpu("h100", 989.4e12, 3.35e12, 80e9),
        Gpu("h800", 989.4e12, 3.35e12, 80e9),
        Gpu("h200", 989.4e12, 4.8e12, 141e9),
    )
}
"""Vendor data sheets, SXM versions. The H800 is an H100 with slower links between GPUs."""

M1_GPU_HOURS = 512 * 24 * 21
"""M1's report: 512 H800 for three weeks of RL."""
M1_DOLLARS = 534_700
"""M1's report, abstract: the rental cost of the same."""
M1_GPU_HOUR_DOLLARS = M1_DOLLARS / M1_GPU_HOURS
"""The hourly rate that the report implies, 2.07 dollars."""


@dataclass(frozen=True)
class Assumptions:
    """What the recipe does not say. Every number of a plan depends on them, so they are printed."""

    gpu: Gpu
    gpus: int
    training_utilisation: float = 0.35
    """Share of the peak that training reaches."""
    decode_utilisation: float = 0.10
    """Share of the peak that sampling reaches with large batches."""
    bandwidth_utilisation: float = 0.60
    """Share of the memory's bandwidth that sampling reaches."""
    length_share: float = 0.50
    """Mean length of a sample as a share of the window."""
    prompt_tokens: int = 512
    """Mean length of a prompt."""
    gpu_hour: float = M1_GPU_HOUR_DOLLARS
    """Dollars for a GPU and hour."""


@dataclass(frozen=True)
class Cost:
    """One part of a run."""

    name: str
    tokens: float
    flops: float
    seconds: float
    gpu_hours: float
    dollars: float
    bound: str
    """What sets the time: `compute` or `memory`."""


def plan_costs(recipe: Recipe, assumed: Assumptions) -> list[Cost]:
    """Cost of every stage, and of each RL round at its window if every gate opens the next one."""
    costs = [_training(recipe, assumed, "pretrain", recipe.pretrain.tokens, recipe.pretrain.window)]
    for name, stage in zip(extension_names(recipe), recipe.extension, strict=True):
        costs.append(_training(recipe, assumed, name, stage.tokens, stage.window))
    windows = recipe.ladder.windows
    for number in range(recipe.rl.rounds):
        window = windows[min(number, len(windows) - 1)]
        costs += round_costs(recipe, assumed, number + 1, window)
    return costs


def round_costs(recipe: Recipe, assumed: Assumptions, number: int, window: int) -> list[Cost]:
    """Rollouts and updates of one RL round at a window, without refills."""
    rl = recipe.rl
    samples = float(rl.batches_per_round * rl.groups_per_batch * rl.group_size)
    length = assumed.length_share * window
    tokens = samples * length
    model = cost_of(recipe.model)
    flops = samples * (model.prefill(assumed.prompt_tokens) / rl.group_size)
    flops += samples * model.decode(length, assumed.prompt_tokens)
    compute = flops / (assumed.gpus * assumed.gpu.flops * assumed.decode_utilisation)
    memory = _decode_seconds_by_memory(recipe, assumed, model, window)
    rollouts = _cost(f"round {number} rollouts", tokens, flops, max(compute, memory), assumed)
    if memory > compute:
        rollouts = Cost(**{**vars(rollouts), "bound": "memory"})
    # Each sample is read once to learn from, and once before that for the old policy's log-probs,
    # which is a third of a training pass.
    row = int(length + assumed.prompt_tokens)
    update = training_flops(recipe.model, int(samples * row), max(1, row)) * (1 + 1 / 3)
    seconds = update / (assumed.gpus * assumed.gpu.flops * assumed.training_utilisation)
    updates = _cost(f"round {number} updates", samples * row, update, seconds, assumed)
    return [rollouts, updates]


def _decode_seconds_by_memory(
    recipe: Recipe, assumed: Assumptions, model: TokenCost, window: int
) -> float:
    """Time to move weights and caches: each step reads all weights once, and every sequence.

    As many sequences run together as fit beside bf16 weights that are spread over all GPUs.
    """
    total, _ = parameter_counts(recipe.model)
    weights = 2.0 * total
    length = assumed.length_share * window
    held = model.memory(assumed.prompt_tokens + length)
    room = 0.9 * assumed.gpus * assumed.gpu.memory - weights
    if room < held:
        return float("inf")
    rl = recipe.rl
    samples = rl.batches_per_round * rl.groups_per_batch * rl.group_size
    together = min(float(rl.groups_per_batch * rl.group_size), room / held)
    waves = samples / together
    read = weights + together * model.memory(assumed.prompt_tokens + length / 2)
    bandwidth = assumed.gpus * assumed.gpu.bandwidth * assumed.bandwidth_utilisation
    return waves * length * read / bandwidth


def _training(recipe: Recipe, assumed: Assumptions, name: str, tokens: int, window: int) -> Cost:
    flops = training_flops(recipe.model, tokens, window)
    peak = assumed.gpus * assumed.gpu.flops * assumed.training_utilisation
    return _cost(name, float(tokens), flops, flops / peak, assumed)


def _cost(name: str, tokens: float, flops: float, seconds: float, assumed: Assumptions) -> Cost:
    hours = assumed.gpus * seconds / 3600
    return Cost(name, tokens, flops, seconds, hours, hours * assumed.gpu_hour, "compute")
