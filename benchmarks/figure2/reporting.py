"""The page docs/experiments/figure2.md with its figures and plots."""

from __future__ import annotations

import json
import math
import re
import textwrap
from pathlib import Path
from typing import Any

from benchmarks.figure2.choosing import OWN, SHARED
from benchmarks.figure2.measuring import LEVELS, RARE, Rates, as_json
from benchmarks.figure2.plots import AUDITED, NAMES, TITLES, draw
from benchmarks.figure2.problems import Chances
from benchmarks.figure2.step_ratio import LAST, RESAMPLES
from benchmarks.figure2.study import Study
from longstride.store.files import write_text

ROUNDS = (1, 2, 4, 8, 16)


def report(study: Study, rates: Rates, work: Path, out: Path) -> None:
    """Write figure2.json, the plots, and figure2.md."""
    figures = as_json(study, rates, work)
    text = json.dumps(figures, indent=1, sort_keys=True, allow_nan=False)
    # A list of numbers on a line of its own.
    text = re.sub(r"\[[\s\d.,eE+-]*\]", lambda found: " ".join(found[0].split()), text)
    write_text(out / "figure2.json", text + "\n")
    draw(json.loads(text), out)
    write_text(out / "figure2.md", _filled(page(study, json.loads(text))))
    print(f"{out / 'figure2.md'} is written")


def page(study: Study, figures: dict[str, Any]) -> str:
    """The page, from the figures alone."""
    recipe, chances = study.recipe(), Chances()
    tables = "\n\n".join(
        f"### {TITLES[which][0].upper()}{TITLES[which][1:]}\n\n{_accuracy(figures, which)}\n\n"
        f"{_timings(figures, which)}"
        for which in TITLES
    )
    model = recipe.model
    return f"""# GRPO, DAPO and CISPO where rare reflection tokens decide

M1 (arXiv 2506.13585, figure 2) trains one base model with GRPO, DAPO and CISPO on the same prompts,
16 updates a generation batch, and finds that CISPO reaches DAPO's accuracy in half the steps. Its
reason: words such as "Wait" are rare, so the first updates move their ratio past PPO's bound, and
the clip then drops their gradient for the rest of the batch. This page repeats the comparison where
that reason can be checked. `make figure2` runs it (about {_minutes(figures)} CPU minutes on as
many cores as there are, and a few more for the SFT checkpoint; stop it and start it again as you
like).

{_headline(figures)}

![Accuracy, probability of reflection tokens and entropy by optimizer step](figure2.svg)

Bold: mean over {len(study.seeds)} seeds with its 95% Student t interval; thin: the seeds. One axis
unit of 16 steps is one generation batch.

{_findings(figures)}

## Setting

**Task.** Sums of four one-digit terms, verified by exact match. SFT teaches two habits: to a bare
problem the model gives a quick answer (right {100 * chances.lucky:.0f}% of the time, by chance),
and in {100 * recipe.sft.reflection_share:.0f}% of the examples it goes on with "Wait,", "Recheck:"
or "However," and works the sum out. Asked to check, it always does. RL asks bare problems only, and
rewards a right answer with 1. So the way to a high accuracy leads through one token that starts
rare: the SFT model scores {_start(figures)}, and rechecks unasked with a probability of
{_rarity(figures)}.

**The same for all.** The SFT checkpoint (`{figures["checkpoint"][:23]}…`); prompts and their order,
by seed; {recipe.rl.groups_per_batch} prompts x {recipe.rl.group_size} samples a batch; groups
without spread are dropped and not refilled (otherwise runs would be asked different prompts);
{recipe.rl.updates_per_batch} updates a batch on disjoint parts of it; AdamW (0.9, 0.95, 1e-15),
gradient clip {recipe.rl.optimizer.grad_clip:g}, no KL term, no length penalty; a hybrid model with
{model.num_layers} layers ({model.block_types.count("lightning")} lightning,
{model.block_types.count("softmax")} softmax), width {model.hidden_size}, {model.num_experts}
experts. **Different:** the objective. GRPO clips at 0.2/0.2 and averages by sequence, DAPO at
0.2/0.28 and by token, CISPO caps the weight at 5 and averages by token.

**Evaluation.** {study.sizes.held_out} held-out problems (none is in SFT or RL), avg@{
        study.sizes.samples
    } at temperature 1, before every batch and at the end: {study.sizes.batches}
batches, {int(figures["sets"][OWN]["steps"][-1])} optimizer steps.

**Learning rates** were chosen on seeds of their own ({", ".join(map(str, study.tuning_seeds))}) and
problems of their own, by the mean accuracy over a run, which rewards speed and punishes relapse.
Then all three are compared at DAPO's best rate and at CISPO's, and each at its own.

{_tuning(study, figures)}

## Results

{tables}

"Level" is a share of DAPO's final level, the mean of its last {LAST} evaluations. The ratio is the
step at which CISPO's mean curve first is there over the step at which DAPO's is; "of the run"
divides by all steps of the run instead, as the paper's "50% of the steps" does. Intervals are
percentiles of {RESAMPLES:,} bootstrap resamples of the seeds, drawn in pairs, each with its own
final level. A curve that never gets there is censored: its step counts as infinite, and "never" is
the share of resamples with such an infinity.

## The reflection audit

The library's own audit (`longstride/rl/audits.py`), summed over the batches that began with a
reflection token less probable than {RARE:g}, {TITLES[AUDITED]}. "Dropped" holds every token against
DAPO's clip (0.2/0.28), whatever the run optimises: for CISPO it is what the clip would have
dropped. "Gradient" is the share of sum |c w A| that flows through reflection tokens.

![Ratio, dropped share and gradient share of reflection tokens by round](figure2-audit.svg)

{_audit(figures)}

## What this does not show

- One task, made so that a rare token decides. It shows that the mechanism of the paper exists and
  how much it is worth when it is all that matters; it says nothing about how often that is so.
  Where no rare token matters, nothing here predicts an advantage.
- A model of {_parameters(study)} parameters from scratch and answers of some 30 tokens; the paper's
  comparison is a 32B model on AIME, with answers a thousand times longer.
- The tuning grid is coarse (factors of two) and scores speed and stability together; with another
  criterion the rates may change.
- All runs end near the ceiling, so the comparison is of speed. A level close to the ceiling is
  crossed late and by noise: read the rows at 50% to 95% for the speed, and the last row for the
  paper's question.
- Each algorithm's rate comes from {len(study.rates)} values and {len(study.tuning_seeds)} tuning
  seeds; clip bounds and cap are the published ones and were not tuned. CISPO's two best rates lie
  {_lead(figures, "cispo"):.1f} points apart (DAPO's: {
        _lead(figures, "dapo"):.1f}), so which of them
  is its own best is a close call, and with it the first row of the table at the top.
- {len(study.seeds)} seeds: bootstrap intervals from so few are somewhat too narrow. Evaluations
  draw with one seed in all runs, so intervals do not hold the choice of the {study.sizes.held_out}
  problems.
- GRPO differs from DAPO in two things, bound and average; this page does not take them apart.

All curves, by seed: `figure2.json`. Updates not taken for want of sequences with signal:
{figures["missing_updates"]} in all runs. Versions:
{", ".join(f"{n} {v}" for n, v in sorted(figures["versions"].items()))}.
"""


def _filled(text: str) -> str:
    """The same with paragraphs and list items filled to 100 columns."""
    blocks = []
    for block in text.strip().split("\n\n"):
        if block.startswith(("#", "|", "!")):
            blocks.append(block)
            continue
        items = re.split(r"\n(?=- |\d+\. )", block)
        blocks.append("\n".join(_item(item) for item in items))
    return "\n\n".join(blocks) + "\n"


def _item(text: str) -> str:
    bullet = re.match(r"- |\d+\. ", text)
    indent = " " * len(bullet[0]) if bullet else ""
    return textwrap.fill(" ".join(text.split()), 100, subsequent_indent=indent,
                         break_long_words=False, break_on_hyphens=False)  # fmt: skip


def _headline(figures: dict[str, Any]) -> str:
    lines = [
        "| CISPO's steps over DAPO's | learning rates | to 90% of DAPO's final level "
        "| to DAPO's final level | final levels: CISPO, DAPO |",
        "|---|---|---|---|---|",
    ]
    for which, title in TITLES.items():
        found = figures["sets"][which]
        at = {row["share"]: row["ratio"] for row in found["timings"] if row["algorithm"] == "cispo"}
        rates = figures["rates"][which]
        finals = (found["summary"][name]["final"][0] for name in ("cispo", "dapo"))
        lines.append(
            f"| {title} | CISPO {rates['cispo']:g}, DAPO {rates['dapo']:g} "
            f"| **{_ratio(at[0.9])}** | **{_ratio(at[1.0])}** "
            f"| {', '.join(f'{100 * value:.1f}%' for value in finals)} |"
        )
    return "\n".join(lines)


def _findings(figures: dict[str, Any]) -> str:
    """What the figures say; numbers from them, judgement ours."""
    sets, rates = figures["sets"], figures["rates"]
    rounds = {n: {r["round"]: r for r in sets[AUDITED]["audit"][n]} for n in NAMES}
    dapo, cispo = rounds["dapo"], rounds["cispo"]
    own = {row["round"]: row for row in sets[OWN]["audit"]["cispo"]}

    def to_90(which: str) -> str:
        return _ratio(_at(sets[which], 0.9))

    def final(which: str, name: str) -> str:
        return f"{100 * sets[which]['summary'][name]['final'][0]:.1f}%"

    at_dapo, at_cispo = SHARED["dapo"], SHARED["cispo"]
    return f"""**What it says.**

1. **The mechanism is there.** While reflections are rare, DAPO's clip drops
   {100 * dapo[4]["dropped"]:.0f}% of their tokens in round 4 of 16 and
   {100 * dapo[8]["dropped"]:.0f}% in round 8 (other tokens: {100 * dapo[8]["other_dropped"]:.1f}%).
   Their share of DAPO's gradient falls from {100 * dapo[1]["gradient"]:.1f}% to
   {100 * dapo[8]["gradient"]:.1f}%; of CISPO's it grows from {100 * cispo[1]["gradient"]:.1f}% to
   {100 * cispo[8]["gradient"]:.1f}%.
2. **At one learning rate for all, CISPO is faster**, not far from the paper's half: it
   reaches 90% of DAPO's final level in {to_90(at_dapo)} of its steps at DAPO's best rate, and in
   {to_90(at_cispo)} at CISPO's.
3. **Tuned, most of that speed is gone.** DAPO's best rate is
   {rates[OWN]["dapo"] / rates[OWN]["cispo"]:g} times CISPO's: larger first steps carry the token
   nearly as far in a batch, with the clip (mean r in round 16: DAPO {dapo[16]["ratio"]:.2f}, CISPO
   at its own rate {own[16]["ratio"]:.2f}; r still grows when its own gradient is gone,
   presumably by Adam's momentum and by the gradient of other tokens, which was not taken apart).
   Each at its own best rate, CISPO needs {to_90(OWN)} of DAPO's steps.
   What is left is the end: the higher rate costs DAPO accuracy ({final(OWN, "dapo")}, CISPO
   {final(OWN, "cispo")}).
4. **CISPO bears a high rate less well.** At DAPO's best one it is fast first and then ends at
   {final(at_dapo, "cispo")} (DAPO {final(at_dapo, "dapo")}); in many resamples it gets to DAPO's
   final level late or never, which is what the second column of ratios says.
5. **DAPO and GRPO** differ little here; see the last column of the tables below."""


def _at(found: dict[str, Any], share: float) -> dict[str, float | None]:
    rows = (row for row in found["timings"] if row["algorithm"] == "cispo")
    return next(row["ratio"] for row in rows if row["share"] == share)


def _lead(figures: dict[str, Any], name: str) -> float:
    """Points between the best and the second best rate of tuning."""
    first, second = sorted(figures["tuning"][name].values(), reverse=True)[:2]
    return 100 * float(first - second)


def _start(figures: dict[str, Any]) -> str:
    return f"{100 * figures['sets'][OWN]['summary']['dapo']['start'][0]:.1f}%"


def _rarity(figures: dict[str, Any]) -> str:
    return f"{100 * figures['sets'][OWN]['curves']['dapo']['marker_probability'][0][0]:.1f}%"


def _accuracy(figures: dict[str, Any], which: str) -> str:
    lines = [
        "| | learning rate | final level | mean over the run | the same less DAPO's, by seed |",
        "|---|---|---|---|---|",
    ]
    for name, title in NAMES.items():
        found = figures["sets"][which]["summary"][name]
        paired = "" if name == "dapo" else _percent(found["less_dapo"], signed=True)
        lines.append(
            f"| {title} | {figures['rates'][which][name]:g} "
            f"| {_percent(found['final'])} | {_percent(found['mean'])} | {paired} |"
        )
    return "\n".join(lines)


def _timings(figures: dict[str, Any], which: str) -> str:
    rows = {(row["algorithm"], row["share"]): row for row in figures["sets"][which]["timings"]}
    lines = [
        "| level | accuracy | CISPO / DAPO steps | never | of the run | GRPO / DAPO steps |",
        "|---|---|---|---|---|---|",
    ]
    for share in LEVELS:
        cispo, grpo = rows["cispo", share], rows["grpo", share]
        lines.append(
            f"| {100 * share:.0f}% | {100 * cispo['level']:.1f}% | {_ratio(cispo['ratio'])} "
            f"| {100 * cispo['ratio']['unreached']:.0f}% | {_ratio(cispo['of_budget'])} "
            f"| {_ratio(grpo['ratio'])} |"
        )
    return "\n".join(lines)


def _tuning(study: Study, figures: dict[str, Any]) -> str:
    lines = [
        "| mean accuracy of a tuning run | " + " | ".join(f"{r:g}" for r in study.rates) + " |",
        "|---|" + "---|" * len(study.rates),
    ]
    for name, title in NAMES.items():
        found = figures["tuning"][name]
        best = max(found.values())
        cells = [f"{100 * found[f'{rate:g}']:.1f}%" for rate in study.rates]
        marked = [
            f"**{cell}**" if found[f"{rate:g}"] == best else cell
            for cell, rate in zip(cells, study.rates, strict=True)
        ]
        lines.append(f"| {title} | {' | '.join(marked)} |")
    return "\n".join(lines)


def _audit(figures: dict[str, Any]) -> str:
    lines = [
        "| | round | tokens | mean r | dropped | of other tokens | above the cap of 5 | gradient |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, title in NAMES.items():
        rows = {row["round"]: row for row in figures["sets"][AUDITED]["audit"][name]}
        for number in ROUNDS:
            row = rows.get(number)
            if row is None:
                continue
            capped = f"{100 * row['capped']:.1f}%" if name == "cispo" else "no cap"
            lines.append(
                f"| {title} | {number} | {row['tokens']:.0f} | {row['ratio']:.2f} "
                f"| {100 * row['dropped']:.0f}% | {100 * row['other_dropped']:.1f}% | {capped} "
                f"| {100 * row['gradient']:.1f}% |"
            )
    return "\n".join(lines)


def _ratio(found: dict[str, float | None]) -> str:
    value, low, high = (_number(found[name]) for name in ("value", "low", "high"))
    return f"{value} [{low}, {high}]"


def _number(value: float | None) -> str:
    return "never" if value is None else f"{value:.2f}"


def _percent(found: list[float], *, signed: bool = False) -> str:
    mean, low, high = (100 * value for value in found)
    sign = "+" if signed else ""
    return f"{mean:{sign}.1f}% [{low:{sign}.1f}, {high:{sign}.1f}]"


def _minutes(figures: dict[str, Any]) -> int:
    return max(1, math.ceil(figures["cpu_seconds"] / 60))


def _parameters(study: Study) -> str:
    from longstride.model.hybrid import HybridModel

    count = sum(p.numel() for p in HybridModel(study.recipe().model).parameters())
    return f"{count:,}"
