"""The plan of a recipe: what would run, how large it is, and what each gate checks."""

from __future__ import annotations

import math

from longstride.data.tasks import check_family
from longstride.data.traces import TRACE_WRITERS
from longstride.errors import RecipeError
from longstride.quality.gate import describe_checks
from longstride.quality.suites import check_thresholds
from longstride.recipe.costing import GPUS, Assumptions, plan_costs
from longstride.recipe.memory import memory_plan
from longstride.recipe.notices import notices
from longstride.recipe.sizes import parameter_counts, training_flops
from longstride.recipe.stages import extension_names
from schemas.engine import EngineConfig
from schemas.recipe import Recipe
from schemas.verdict import EDGE_TITLES


def plan_lines(recipe: Recipe) -> list[str]:
    """Lines of the plan.

    Raises:
        RecipeError: `quality.thresholds` names a check that no suite has.
    """
    check_thresholds(recipe)
    for family in recipe.tasks:
        check_family(family.name)
        if family.name not in TRACE_WRITERS:
            raise RecipeError(
                f"tasks: family {family.name!r} has no writer of worked solutions for SFT; "
                f"families with one: {', '.join(sorted(TRACE_WRITERS))}"
            )
    total, active = parameter_counts(recipe.model)
    algorithm = recipe.rl.algorithm
    lines = [
        f"recipe     {recipe.name} {recipe.version}  {recipe.digest()}",
        f"model      {total:,} parameters, {active:,} active a token; "
        f"{recipe.model.block_types.count('lightning')} lightning and "
        f"{recipe.model.block_types.count('softmax')} softmax layers",
        f"engine     {_engine(recipe.engine)}",
        f"corpus     {recipe.data.characters:,} characters, "
        f"{recipe.data.reasoning_related_share:.0%} reasoning-related",
        "",
        f"{'stage':12} {'window':>9} {'tokens':>15} {'steps':>9} {'rate':>10} {'FLOPs':>9}",
    ]
    lines += [_stage_line(*stage) for stage in _stages(recipe)]
    lines += [*_cost_lines(recipe), "", *_memory_lines(recipe)]
    windows = recipe.ladder.windows
    lines += [
        "",
        f"RL         {algorithm.kind}, {recipe.rl.rounds} rounds x {recipe.rl.batches_per_round} "
        f"batches x {recipe.rl.groups_per_batch} prompts x {recipe.rl.group_size} samples, "
        f"{recipe.rl.updates_per_batch} updates a batch",
        f"rollouts   {recipe.rollout.generator.kind}, up to {recipe.rollout.max_batch} sequences "
        "at a time",
        f"ladder     {' -> '.join(str(w) for w in windows)} tokens; a window opens when perplexity "
        f"changes by at most {recipe.ladder.perplexity_relative_change:g} and p99 length reaches "
        f"{recipe.ladder.p99_share:g} of it",
        f"benchmark  {sum(len(f.levels) for f in recipe.tasks)} levels x "
        f"{recipe.benchmark.problems_per_level} problems x "
        f"{recipe.benchmark.samples_per_problem} samples",
        "",
        "gates      (block: stops the run; warn: shown; info: recorded)",
    ]
    return lines + _gate_lines(recipe)


def _engine(engine: EngineConfig) -> str:
    name = "torch, 1 process"
    if engine.kind == "deepspeed":
        name = f"DeepSpeed, {engine.ranks} process(es), ZeRO {engine.zero_stage}"
        name += ", optimizer on the CPU" if engine.offload_optimizer else ""
    kept = "recomputed" if engine.activation_checkpointing else "kept"
    every = engine.checkpoint_every_steps
    return (
        f"{name}; {engine.dtype} arithmetic; microbatches of {engine.microbatch_tokens:,} tokens, "
        f"activations {kept}; "
        + (f"in-progress checkpoint every {every} steps" if every else "no in-progress checkpoints")
    )


def _stages(recipe: Recipe) -> list[tuple[Recipe, str, int, int, int, float]]:
    pretrain = recipe.pretrain
    stages = [
        (recipe, "pretrain", pretrain.window, pretrain.tokens, pretrain.rows_per_step,
         pretrain.learning_rate)
    ]  # fmt: skip
    for name, extension in zip(extension_names(recipe), recipe.extension, strict=True):
        stages.append(
            (recipe, name, extension.window, extension.tokens, extension.rows_per_step,
             extension.learning_rate)
        )  # fmt: skip
    return stages


def _stage_line(recipe: Recipe, name: str, window: int, tokens: int, rows: int, rate: float) -> str:
    steps = math.ceil(tokens / (window * rows))
    flops = training_flops(recipe.model, tokens, window)
    return f"{name:12} {window:9,} {tokens:15,} {steps:9,} {rate:10.2g} {flops:9.2g}"


def _cost_lines(recipe: Recipe) -> list[str]:
    """What RL costs by the default assumptions, for recipes that ask for GPUs."""
    if not recipe.resources.rl.gpus:
        return []
    assumed = Assumptions(GPUS["h800"], 512)
    costs = [cost for cost in plan_costs(recipe, assumed) if cost.name.startswith("round ")]
    hours = math.fsum(cost.gpu_hours for cost in costs)
    return [
        f"RL cost      {hours:,.0f} H800 hours, {hours * assumed.gpu_hour:,.0f} dollars, if every "
        "gate opens and samples fill half of the window; longstride plan says more"
    ]


def memory_problems(recipe: Recipe) -> list[str]:
    """Tasks whose estimated peak exceeds their limit, one sentence each."""
    return [problem for estimate in memory_plan(recipe) for problem in estimate.problems()]


def _memory_lines(recipe: Recipe) -> list[str]:
    """Estimated peak of each task beside its limit, and the parts that make it up."""
    lines = [f"{'memory':12} {'peak':>11} {'limit':>9}  largest parts (estimates)"]
    for estimate in memory_plan(recipe):
        limit = estimate.resources.memory
        lines.append(_memory_line(estimate.task, estimate.host_total, limit, estimate.host))
        if estimate.device:
            limit = estimate.resources.gpu_memory or "not set"
            total = estimate.device_total
            lines.append(_memory_line("  each GPU", total, limit, estimate.device))
    lines += [f"  problem: {problem}" for problem in memory_problems(recipe)]
    lines += [f"  notice: {notice}" for notice in notices(recipe)]
    return lines


def _memory_line(name: str, total: int, limit: str, parts: dict[str, int]) -> str:
    largest = sorted(parts.items(), key=lambda part: -part[1])[:3]
    shown = ", ".join(f"{part} {_size(value)}" for part, value in largest)
    return f"{name:12} {_size(total):>11} {limit:>9}  {shown}"


def _size(value: int) -> str:
    for unit, size in (("TiB", 2**40), ("GiB", 2**30)):
        if value >= size:
            return f"{value / size:,.2f} {unit}"
    return f"{value / 2**20:,.0f} MiB"


def _gate_lines(recipe: Recipe) -> list[str]:
    lines: list[str] = []
    edge = ""
    for check in describe_checks():
        current, _, name = check.key.partition("/")
        if current != edge:
            edge = current
            lines.append(f"  {edge} {EDGE_TITLES[edge]}")
        value = recipe.quality.thresholds.get(check.key, check.threshold)
        shown = check.threshold_field or ("exact" if value is None else f"{value:g}")
        lines.append(f"     {check.severity:5} {name:34} {shown}")
    return lines
