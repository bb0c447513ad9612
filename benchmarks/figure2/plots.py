"""The plots of the page; equal figures give equal files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.figure2.choosing import OWN, SHARED
from benchmarks.figure2.measuring import LEVELS
from benchmarks.figure2.step_ratio import band, final_level, mean_curve

COLOURS = {"grpo": "#8a8a8a", "dapo": "#2a6db3", "cispo": "#b3402a"}
SHADES = ("#333333", "#2a6db3", "#b3402a")
NAMES = {"grpo": "GRPO", "dapo": "DAPO", "cispo": "CISPO"}
TITLES = {
    OWN: "each at its own best rate",
    SHARED["dapo"]: "all at DAPO's best rate",
    SHARED["cispo"]: "all at CISPO's best rate",
}
AUDITED = SHARED["dapo"]
"""Set of runs whose reflection tokens and entropy are shown: one rate, the baseline's best."""
TOP = 2.0
"""Largest ratio of steps that is drawn; longer intervals leave the plot."""


def draw(figures: dict[str, Any], folder: Path) -> None:
    """Write figure2.svg (curves) and figure2-audit.svg (reflection tokens by off-policy round)."""
    import matplotlib

    matplotlib.use("svg")
    # No random ids and no date, so that equal figures give an equal file.
    matplotlib.rcParams["svg.hashsalt"] = "figure2"
    _curves(figures, folder / "figure2.svg")
    _audit(figures, folder / "figure2-audit.svg")


def _curves(figures: dict[str, Any], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, 3, figsize=(11.5, 6.6), layout="constrained")
    for axis, which in zip(axes[0], TITLES, strict=True):
        _accuracies(axis, figures, which)
    shared = figures["sets"][AUDITED]
    for name in NAMES:
        measured = shared["curves"][name]
        _banded(axes[1, 0], shared["steps"], measured["marker_probability"], name, NAMES[name])
        _banded(axes[1, 1], shared["steps"][:-1], measured["entropy"], name, NAMES[name])
    axes[1, 0].set_yscale("log")
    axes[1, 0].set_yticks([0.03, 0.1, 0.3, 1.0], ["0.03", "0.1", "0.3", "1"])
    axes[1, 0].minorticks_off()
    axes[1, 0].set_title("probability of a reflection token\nafter a quick answer", fontsize=10)
    axes[1, 1].set_title("entropy of the policy\n(nats a token)", fontsize=10)
    axes[1, 1].set_ylim(bottom=0)
    for axis in (*axes[0], *axes[1, :2]):
        axis.set_xlabel("optimizer steps (16 a generation batch)", fontsize=9)
        axis.set_xticks(shared["steps"][::4])
    for axis in axes[1, :2]:
        axis.text(0.98, 0.5, TITLES[AUDITED], transform=axis.transAxes, fontsize=8, ha="right",
                  color="#666666")  # fmt: skip
    _ratios(axes[1, 2], figures)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)


def _accuracies(axis: Any, figures: dict[str, Any], which: str) -> None:
    found = figures["sets"][which]
    for name in NAMES:
        label = f"{NAMES[name]}, {figures['rates'][which][name]:g}"
        _banded(axis, found["steps"], found["curves"][name]["accuracy"], name, label)
    level = final_level(found["curves"]["dapo"]["accuracy"])
    axis.axhline(level, color=COLOURS["dapo"], linewidth=0.8, linestyle=":")
    axis.text(found["steps"][-1], 1.02, "dotted: DAPO's final level", color=COLOURS["dapo"],
              fontsize=8, ha="right")  # fmt: skip
    axis.set_title(f"accuracy,\n{TITLES[which]}", fontsize=10)
    axis.set_ylim(0, 1.08)
    axis.legend(frameon=False, fontsize=8, loc="lower right", title="learning rate",
                title_fontsize=8)  # fmt: skip


def _ratios(axis: Any, figures: dict[str, Any]) -> None:
    """CISPO's steps over DAPO's, by level; what was never reached has no point."""
    for offset, (which, marker) in enumerate(zip(TITLES, "osD", strict=True)):
        rows = [r for r in figures["sets"][which]["timings"] if r["algorithm"] == "cispo"]
        for place, row in enumerate(rows):
            ratio, at = row["ratio"], place + 0.22 * (offset - 1)
            if ratio["value"] is None:
                continue
            high = TOP if ratio["high"] is None else ratio["high"]
            axis.plot([at, at], [ratio["low"], min(high, TOP)], color=SHADES[offset], linewidth=1)
            label = TITLES[which] if place == 0 else None
            axis.plot([at], [min(ratio["value"], TOP)], marker=marker, markersize=5,
                      color=SHADES[offset], linestyle="none", label=label)  # fmt: skip
    axis.axhline(1, color="#999999", linewidth=0.8)
    axis.axhline(0.5, color="#999999", linewidth=0.8, linestyle=":")
    axis.set_xticks(range(len(LEVELS)), [f"{100 * share:.0f}%" for share in LEVELS])
    axis.set_xlabel("share of DAPO's final level", fontsize=9)
    axis.set_ylim(0, TOP)
    axis.set_title("CISPO's steps over DAPO's,\nwith 95% bootstrap intervals", fontsize=10)
    axis.legend(frameon=False, fontsize=8, loc="upper left")


def _banded(
    axis: Any, steps: Sequence[float], curves: Sequence[Sequence[float]], name: str, label: str
) -> None:
    """Mean over seeds with its 95% interval, and the seeds as thin lines."""
    for curve in curves:
        axis.plot(steps, curve, color=COLOURS[name], linewidth=0.4, alpha=0.35)
    low, high = zip(*band(curves), strict=True)
    floor = 1e-3  # the t interval of a probability near 0 may reach below it
    axis.fill_between(
        steps, [max(floor, v) for v in low], high, color=COLOURS[name], alpha=0.18, linewidth=0
    )
    axis.plot(steps, mean_curve(curves), color=COLOURS[name], linewidth=1.8, label=label)


def _audit(figures: dict[str, Any], path: Path) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(9.5, 3.4), layout="constrained")
    titles = {
        "ratio": "mean importance ratio r",
        "dropped": "share that DAPO's clip drops",
        "gradient": "share of the gradient",
    }
    for axis, (measure, title) in zip(axes, titles.items(), strict=True):
        for name in NAMES:
            rows = figures["sets"][AUDITED]["audit"][name]
            axis.plot(
                [row["round"] for row in rows],
                [row[measure] for row in rows],
                color=COLOURS[name],
                linewidth=1.6,
                marker="o",
                markersize=3,
                label=NAMES[name],
            )
        axis.set_title(f"reflection tokens:\n{title}", fontsize=10)
        axis.set_xlabel("off-policy round of the batch", fontsize=9)
        axis.set_xticks([1, 4, 8, 12, 16])
        axis.set_ylim(bottom=0)
        axis.spines[["top", "right"]].set_visible(False)
    axes[0].axhline(1.28, color="#999999", linewidth=0.8, linestyle=":")
    axes[0].text(16, 1.1, "DAPO's bound, 1.28", color="#666666", fontsize=8, ha="right")
    axes[1].set_ylim(0, 1)
    axes[0].legend(frameon=False, fontsize=8, loc="upper left", bbox_to_anchor=(0, 0.93))
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
