"""The memory plan: peak memory of each kind of task, estimated before anything runs.

All numbers are bytes. P parameters take 4 P for weights, 4 P for gradients and 8 P for AdamW's two
moments, all fp32 whatever the arithmetic. Of N ranks each holds 1 / N of the moments under ZeRO 1,
of the gradients too under ZeRO 2, of the weights too under ZeRO 3, which gathers the largest layer
as it runs. ZeRO 1 and 2 step on a flat copy of this rank's share of the weights (4 P / N). bf16
arithmetic keeps a cast copy of the body's weights (2 P) until the backward pass has used it. The
spike watch keeps one snapshot of weights and moments (12 P, divided likewise) in host memory.
Activations, logits, decode states and prefill are counted in `longstride.recipe.activations`.

Two constants are measured, and stand apart from the formulas: a process that has imported what the
task needs, and what the allocator keeps of freed activations (`make bench-memory` measures both).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from longstride.recipe.activations import (
    Arithmetic,
    Batch,
    decode_bytes,
    prefill_bytes,
    recomputed_layer,
    training_peak,
)
from longstride.recipe.sizes import parameter_counts
from longstride.recipe.stages import extension_names
from schemas.engine import EngineConfig
from schemas.model import ModelConfig
from schemas.recipe import Recipe, Resources
from schemas.stages import ExtensionStage, PretrainStage, SFTStage

PROCESS_BYTES = 360 * 2**20
"""Resident size of a task's process before its work: Python, torch and our modules."""
ALLOCATOR_SHARE = 0.12
"""glibc keeps about this share of the activations that were freed (measured: 4 to 22%); with its
dynamic threshold off (MALLOC_MMAP_THRESHOLD_=65536) it is nothing, and training is slower. Under
activation checkpointing it keeps about one recomputed layer: freed pieces lie between the inputs
that stay."""
PROMPT_TOKENS = 96
"""Assumed for RL prompts and benchmark problems, whose length the recipe does not say."""
PREFILL_TOKENS = 16_384
"""Prompt tokens that the native generator reads in one pass, at most."""
ROW_BYTES = 50
"""A token of packed rows while a stage runs: three int64 and a bool, as read and as cut into
training and held-out rows."""
ROLLOUT_BYTES = 136
"""A sampled token in Python: its id, three floats in lists, and their pointers."""

_UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


@dataclass(frozen=True)
class Setup:
    """How a task trains: what of `recipe.engine` matters for memory."""

    how: Arithmetic
    """Arithmetic of the body."""
    engine: EngineConfig
    """The engine."""

    @property
    def zero_stage(self) -> int:
        """0 to 3."""
        return self.engine.zero_stage if self.engine.kind == "deepspeed" else 0

    @property
    def offload(self) -> bool:
        """Whether moments live in host memory."""
        return self.engine.kind == "deepspeed" and self.engine.offload_optimizer

    @property
    def ranks(self) -> int:
        """Processes that share a step."""
        return self.engine.processes


@dataclass(frozen=True)
class Estimate:
    """Peak of one kind of task. Without accelerators everything counts as host memory."""

    task: str
    """`pretrain`, `extend-1`, `sft`, `rl round`, `benchmark`."""
    device: dict[str, int] = field(default_factory=dict)
    """Parts in the memory of one accelerator."""
    host: dict[str, int] = field(default_factory=dict)
    """Parts in the memory of one process."""
    processes: int = 1
    """Processes that share the task's host."""
    resources: Resources = field(default_factory=Resources)
    """What the recipe asks for."""

    @property
    def device_total(self) -> int:
        """Bytes of one accelerator."""
        return sum(self.device.values())

    @property
    def host_total(self) -> int:
        """Bytes of the task's host."""
        return self.processes * sum(self.host.values())

    def problems(self) -> list[str]:
        """What does not fit, in sentences."""
        found = []
        limits = [("memory", self.host, self.host_total, self.resources.memory)]
        if self.resources.gpu_memory is not None:
            limits.append(("gpu_memory", self.device, self.device_total, self.resources.gpu_memory))
        for name, parts, total, limit in limits:
            if total > memory_bytes(limit):
                largest = max(parts, key=lambda part: parts[part])
                found.append(
                    f"{self.task} needs about {total / 2**30:,.2f} GiB, above its limit {name}="
                    f"{limit}; the largest part is {largest} ({parts[largest] / 2**30:,.2f} GiB)"
                )
        return found


def memory_bytes(text: str) -> int:
    """Bytes of a quantity such as `3Gi`."""
    return round(float(text[:-2]) * _UNITS[text[-2:]])


def memory_plan(recipe: Recipe) -> list[Estimate]:
    """Estimates of all tasks that hold a model, in the order in which they run."""
    training, rl = recipe.resources.training, recipe.resources.rl
    stages: list[tuple[str, PretrainStage | ExtensionStage | SFTStage]] = [
        ("pretrain", recipe.pretrain),
        *zip(extension_names(recipe), recipe.extension, strict=True),
        ("sft", recipe.sft),
    ]
    plan = [_language(recipe, name, stage, setup_of(recipe, training)) for name, stage in stages]
    return [*plan, _round(recipe, setup_of(recipe, rl)), _benchmark(recipe)]


def setup_of(recipe: Recipe, resources: Resources) -> Setup:
    """How a task with these resources trains; the compiled kernels run in fp32 on a CPU only."""
    item = 2 if recipe.engine.dtype == "bfloat16" else 4
    return Setup(Arithmetic(item, fused=item == 4 and not resources.gpus), recipe.engine)


def _language(
    recipe: Recipe, name: str, stage: PretrainStage | ExtensionStage | SFTStage, setup: Setup
) -> Estimate:
    rows = min(stage.rows_per_step, max(1, setup.engine.microbatch_tokens // stage.window))
    batch = Batch(rows, stage.window, packed=True)
    tokens = stage.examples * stage.window if isinstance(stage, SFTStage) else stage.tokens
    device, host = model_state(recipe.model, setup)
    checkpointed = setup.engine.activation_checkpointing
    device |= {"activations": training_peak(recipe.model, batch, setup.how, checkpointed)}
    kept = kept_by_allocator(recipe.model, batch, setup.how, checkpointed)
    host |= {"rows": ROW_BYTES * max(tokens, stage.window)}
    if stage.spikes.enabled:
        host |= {"snapshot": snapshot_bytes(recipe.model, setup)}
    return _estimate(name, recipe.resources.training, device, host, setup.ranks, kept)


def kept_by_allocator(
    config: ModelConfig, batch: Batch, how: Arithmetic, checkpointed: bool
) -> int:
    """Freed activations that a CPU process does not give back; see `ALLOCATOR_SHARE`."""
    if checkpointed:
        return recomputed_layer(config, batch, how)
    return round(ALLOCATOR_SHARE * training_peak(config, batch, how))


def _round(recipe: Recipe, setup: Setup) -> Estimate:
    """A round samples, then learns: the larger of the two stands beside weights and moments."""
    window, rl = recipe.ladder.windows[-1], recipe.rl
    longest = window + PROMPT_TOKENS
    samples = rl.groups_per_batch * rl.group_size
    share = -(-samples // rl.updates_per_batch)
    rows = min(share, max(1, setup.engine.microbatch_tokens // longest))
    batch, checkpointed = Batch(rows, longest), setup.engine.activation_checkpointing
    learning = training_peak(recipe.model, batch, setup.how, checkpointed)
    kept = kept_by_allocator(recipe.model, batch, setup.how, checkpointed)
    sampling = sampling_bytes(
        recipe.model, min(recipe.rollout.max_batch, samples), rl.group_size, window, setup.how.item
    )
    if not recipe.resources.rl.gpus:
        sampling += packed_bytes(recipe.model, setup.how.item)
    device, host = model_state(recipe.model, setup)
    if setup.how.item < 4 or setup.zero_stage:
        device |= {"copy to sample from": setup.how.item * parameter_counts(recipe.model)[0]}
    device |= {"activations" if learning > sampling else "sampling": max(learning, sampling)}
    host |= {"rollouts": ROLLOUT_BYTES * samples * window * rl.batches_per_round}
    kept = max(kept, round(ALLOCATOR_SHARE * sampling))
    return _estimate("rl round", recipe.resources.rl, device, host, setup.ranks, kept)


def _benchmark(recipe: Recipe) -> Estimate:
    problems = sum(len(family.levels) for family in recipe.tasks)
    problems *= recipe.benchmark.problems_per_level
    samples = recipe.benchmark.samples_per_problem
    rows = min(recipe.rollout.max_batch, problems * samples)
    sampling = sampling_bytes(recipe.model, rows, samples, recipe.ladder.windows[-1])
    if not recipe.resources.benchmark.gpus:
        sampling += packed_bytes(recipe.model)
    device = {"weights": 4 * parameter_counts(recipe.model)[0], "sampling": sampling}
    kept = round(ALLOCATOR_SHARE * sampling)
    return _estimate("benchmark", recipe.resources.benchmark, device, {}, 1, kept)


def sampling_bytes(
    config: ModelConfig, rows: int, group: int, new_tokens: int, item: int = 4
) -> int:
    """Decode states of `rows` sequences in groups of one prompt, and a refill of all of them."""
    prompts = max(1, min(PREFILL_TOKENS // PROMPT_TOKENS, -(-rows // group)))
    decode = decode_bytes(config, rows, PROMPT_TOKENS, new_tokens, item)
    return decode + prefill_bytes(config, prompts, PROMPT_TOKENS, item)


def packed_bytes(config: ModelConfig, item: int = 4) -> int:
    """The copy of the trunk's matrices that decoding on a CPU packs for its kernel, fp32 only."""
    if item < 4 or config.qk_norm:
        return 0
    return 4 * (parameter_counts(config)[0] - 2 * config.vocab_size * config.hidden_size)


def model_state(config: ModelConfig, setup: Setup) -> tuple[dict[str, int], dict[str, int]]:
    """Weights, gradients and moments of one rank: on its device, and on its host."""
    total, _ = parameter_counts(config)
    ends = 2 * config.vocab_size * config.hidden_size
    share = setup.ranks
    weights = 4 * total
    if setup.zero_stage == 3:
        layer = (total - ends) // config.num_layers
        weights = 4 * (total // share + max(layer, ends // 2))
    if setup.zero_stage:
        weights += 4 * total // share
    device = {
        "weights": weights,
        "gradients": 4 * total // (share if setup.zero_stage >= 2 else 1),
    }
    if setup.how.item < 4:
        device["cast weights"] = setup.how.item * (total - ends // 2)
    moments = {"moments": 8 * total // (share if setup.zero_stage >= 1 else 1)}
    return (device, moments) if setup.offload else (device | moments, {})


def snapshot_bytes(config: ModelConfig, setup: Setup) -> int:
    """Weights and moments that the spike watch rolls back to, a rank."""
    total, _ = parameter_counts(config)
    weights = 4 * total // (setup.ranks if setup.zero_stage == 3 else 1)
    if setup.zero_stage:
        weights += 4 * total // setup.ranks
    return weights + 8 * total // (setup.ranks if setup.zero_stage else 1)


def _estimate(
    task: str,
    resources: Resources,
    device: dict[str, int],
    host: dict[str, int],
    ranks: int,
    kept: int,
) -> Estimate:
    """Without accelerators everything, and what the allocator keeps, lies in host memory."""
    processes = max(1, min(ranks, resources.gpus)) if resources.gpus else ranks
    host = {"process": PROCESS_BYTES, **host}
    if resources.gpus:
        return Estimate(task, device, host, processes, resources)
    return Estimate(task, {}, host | device | {"allocator": kept}, processes, resources)
