"""The page of a plan: generation cost beside DeepSeek-R1, and time and money of every part."""

from __future__ import annotations

from collections.abc import Sequence

from longstride.recipe.costing import Assumptions, Cost
from longstride.recipe.generation_cost import TokenCost, deepseek_r1
from longstride.report import page
from longstride.report.charts import Chart, Series, draw
from longstride.report.markup import Safe, raw_script, tag
from longstride.report.script import SCRIPT

_LENGTHS = (1, 2, 4, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 100, 128)
"""Generation lengths in thousands of tokens."""


def plan_page(name: str, model: TokenCost, costs: Sequence[Cost], assumed: Assumptions) -> str:
    """A self-contained HTML page; `name` is the recipe's."""
    body = tag(
        "body",
        tag(
            "main",
            tag("h1", f"Plan of {name}"),
            tag("p", *assumption_lines(assumed), class_="lead"),
            tag("section", tag("h2", "Operations of generating"), tag("p", _RULE, class_="lead"),
                tag("div", *cost_charts(model), class_="charts")),
            tag("section", tag("h2", "Time and money"), _table(costs)),
        ),
        tag("div", id="tip", role="status"),
        raw_script(SCRIPT),
    )  # fmt: skip
    html = tag("html", page.head(f"Plan of {name}"), body, lang="en")
    return f"<!doctype html>\n{html}\n"


_RULE = (
    "Two operations a multiply-add; a projection costs twice its active parameters; softmax "
    "attention grows with the position, lightning attention does not. DeepSeek-R1 with keys and "
    "values unpacked; with absorbed projections, as servers decode, it costs more."
)


def assumption_lines(assumed: Assumptions) -> list[str]:
    """What the plan assumes, as sentences."""
    return [
        f"{assumed.gpus} x {assumed.gpu.name.upper()} at {assumed.gpu_hour:.2f} dollars an hour. "
        f"Training reaches {assumed.training_utilisation:.0%} of the peak, sampling "
        f"{assumed.decode_utilisation:.0%} of it and {assumed.bandwidth_utilisation:.0%} of the "
        f"memory's bandwidth. A sample fills {assumed.length_share:.0%} of the window on average, "
        f"after a prompt of {assumed.prompt_tokens} tokens. Every gate opens the next window."
    ]


def cost_charts(model: TokenCost) -> list[Safe]:
    """FLOPs against generation length, and their ratio, for the recipe's model and DeepSeek-R1."""
    r1, latent = deepseek_r1(), deepseek_r1(absorbed=True)
    flops = Chart(
        "Operations of one generation", "PFLOP",
        [
            Series(cost.name, [(n * 1e3, cost.decode(n * 1e3) / 1e15) for n in _LENGTHS], slot)
            for slot, cost in enumerate((model, r1, latent), start=1)
        ],
        x_label="generated tokens", scale="linear", zero=True,
    )  # fmt: skip
    ratios = Chart(
        "Operations relative to DeepSeek-R1", "ratio",
        [
            Series("whole generation",
                   [(n * 1000.0, model.decode(n * 1e3) / r1.decode(n * 1e3)) for n in _LENGTHS], 1),
            Series("last token",
                   [(n * 1000.0, model.at_position(n * 1e3) / r1.at_position(n * 1e3))
                    for n in _LENGTHS], 2),
        ],
        x_label="generated tokens", scale="linear", zero=True,
    )  # fmt: skip
    return [draw(flops), draw(ratios)]


def _table(costs: Sequence[Cost]) -> Safe:
    titles = ("part", "tokens", "FLOPs", "days", "GPU hours", "dollars", "bound by")
    rows = [
        tag("tr", *(tag("td", value) for value in (
            cost.name, f"{cost.tokens:.3g}", f"{cost.flops:.3g}", f"{cost.seconds / 86_400:,.2f}",
            f"{cost.gpu_hours:,.0f}", f"{cost.dollars:,.0f}", cost.bound)))
        for cost in costs
    ]  # fmt: skip
    header = tag("thead", tag("tr", *(tag("th", title) for title in titles)))
    return tag("div", tag("table", header, tag("tbody", *rows)), class_="scroll")
