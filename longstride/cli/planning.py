"""`longstride plan`: operations, time and money of a recipe on a named number of GPUs."""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from longstride.cli.recipes import open_named_recipe
from longstride.errors import UsageError
from longstride.recipe.costing import GPUS, Assumptions, Cost, plan_costs
from longstride.recipe.generation_cost import TokenCost, cost_of, deepseek_r1, ratio
from longstride.report.planning import assumption_lines, plan_page
from longstride.store.files import write_text

_LENGTHS = (8_000, 16_000, 32_000, 40_000, 64_000, 80_000, 100_000)


def add_command(command: argparse.ArgumentParser) -> None:
    """Add the options of `plan` to a command that takes a recipe."""
    defaults = Assumptions(GPUS["h800"], 512)
    command.add_argument("--gpus", type=int, default=512, help="number of GPUs (default: 512)")
    command.add_argument("--gpu", choices=sorted(GPUS), default="h800", help="kind of GPU")
    for name in ("training_utilisation", "decode_utilisation", "bandwidth_utilisation"):
        value = getattr(defaults, name)
        shown = name.replace("_", "-")
        command.add_argument(f"--{shown}", type=_share, default=value, help=f"default: {value:g}")
    command.add_argument(
        "--length-share",
        type=_share,
        default=defaults.length_share,
        help="mean length of a sample as a share of the window (default: 0.5)",
    )
    command.add_argument("--prompt-tokens", type=int, default=defaults.prompt_tokens)
    command.add_argument(
        "--gpu-hour", type=float, default=defaults.gpu_hour, help="dollars for a GPU and hour"
    )
    command.add_argument("--html", type=Path, help="write the plan with its charts to this page")
    command.add_argument("--json", action="store_true", help="print JSON instead of a table")
    command.set_defaults(run=plan)


def plan(arguments: argparse.Namespace) -> int:
    """Print the plan."""
    recipe = open_named_recipe(arguments.recipe, arguments.overrides)
    if arguments.gpus < 1 or arguments.gpu_hour < 0 or arguments.prompt_tokens < 1:
        raise UsageError(
            f"--gpus {arguments.gpus} and --prompt-tokens {arguments.prompt_tokens} must be at "
            f"least 1, and --gpu-hour {arguments.gpu_hour} at least 0"
        )
    assumed = Assumptions(
        gpu=GPUS[arguments.gpu],
        gpus=arguments.gpus,
        training_utilisation=arguments.training_utilisation,
        decode_utilisation=arguments.decode_utilisation,
        bandwidth_utilisation=arguments.bandwidth_utilisation,
        length_share=arguments.length_share,
        prompt_tokens=arguments.prompt_tokens,
        gpu_hour=arguments.gpu_hour,
    )
    costs, model = plan_costs(recipe, assumed), cost_of(recipe.model, recipe.name)
    if any(math.isinf(cost.seconds) for cost in costs):
        raise UsageError(
            f"{assumed.gpus} x {assumed.gpu.name} cannot hold the model's weights and one sequence "
            "at the recipe's windows; raise --gpus or choose a larger --gpu"
        )
    if arguments.json:
        print(json.dumps({"assumed": asdict(assumed), "costs": [asdict(c) for c in costs]}))
    else:
        for line in [*assumption_lines(assumed), "", *_cost_lines(costs), "", *_ratio_lines(model)]:
            print(line)
    if arguments.html:
        write_text(arguments.html, plan_page(recipe.name, model, costs, assumed))
        print(arguments.html)
    return 0


def _cost_lines(costs: Sequence[Cost]) -> list[str]:
    lines = [
        f"{'part':20} {'tokens':>9} {'FLOPs':>9} {'days':>9} {'GPU hours':>11} "
        f"{'dollars':>12}  bound"
    ]
    for cost in (*costs, *_totals(costs)):
        lines.append(
            f"{cost.name:20} {cost.tokens:9.2e} {cost.flops:9.2e} {cost.seconds / 86_400:9.2f} "
            f"{cost.gpu_hours:11,.0f} {cost.dollars:12,.0f}  {cost.bound}"
        )
    return lines


def _totals(costs: Sequence[Cost]) -> list[Cost]:
    def total(name: str, parts: Sequence[Cost]) -> Cost:
        fields = ("tokens", "flops", "seconds", "gpu_hours", "dollars")
        sums = {field: math.fsum(getattr(part, field) for part in parts) for field in fields}
        return Cost(name=name, bound="", **sums)

    rl = [cost for cost in costs if cost.name.startswith("round ")]
    return [total("all of RL", rl), total("everything", costs)]


def _ratio_lines(model: TokenCost) -> list[str]:
    r1, latent = deepseek_r1(), deepseek_r1(absorbed=True)
    lines = [
        "operations relative to DeepSeek-R1 (2 x active parameters + attention at each position)",
        f"{'generated tokens':>18} {'whole':>8} {'last token':>11} {'last, absorbed MLA':>19} "
        f"{'state and cache':>16}",
    ]
    for tokens in _LENGTHS:
        lines.append(
            f"{tokens:18,} {ratio(model, r1, tokens, 'cumulative'):8.2f} "
            f"{ratio(model, r1, tokens, 'at_position'):11.2f} "
            f"{ratio(model, latent, tokens, 'at_position'):19.2f} "
            f"{model.memory(tokens) / 2**20:12,.0f} MiB"
        )
    return lines


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0.0 < value <= 1.0:
        raise argparse.ArgumentTypeError(f"{text!r} is no share; give a number in (0, 1]")
    return value
