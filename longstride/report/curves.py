"""Which series share a chart: the dozen that matter first, every other one after them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from longstride.report import charts, context
from longstride.report.charts import Chart, Reference, Segment, Series
from longstride.report.markup import Safe, join, tag
from schemas.run import RunRecord, TaskMetrics

AUDIT_PREFIXES = ("rl/audit/", "rl/batch_audit/")
"""Metrics that have a section of their own."""
_MOST = 8


@dataclass(frozen=True)
class _Spec:
    title: str
    unit: str
    names: tuple[tuple[str, str], ...]
    """Metric name and its name in the legend."""
    scale: Literal["linear", "log", "auto"] = "auto"
    zero: bool = False
    share: bool = False
    steps: tuple[str, ...] = ()
    reference: tuple[str, str] | None = None
    """Label and dotted recipe field of a rule to draw."""


TRAINING = (
    _Spec("Loss", "nats per token", (("train/loss", "loss"), ("train/validation/loss", "held out"),
                                     ("eval/loss", "held out"))),
    _Spec("Perplexity", "exp(loss)", (("train/perplexity", "perplexity"),)),
    _Spec("Gradient norm", "before clipping", (("train/grad_norm", "gradient norm"),)),
    _Spec("Learning rate", "per step", (("train/learning_rate", "learning rate"),), zero=True,
          scale="linear"),
    _Spec("Spike watch", "steps left out and back-offs, of a stage so far",
          (("train/spikes", "left out"), ("train/back_offs", "back-offs")), zero=True,
          scale="linear", steps=("train/spikes", "train/back_offs")),
    _Spec("Throughput", "tokens per second", (("train/tokens_per_second", "tokens/s"),),
          zero=True, scale="linear"),
)  # fmt: skip
RL = (
    _Spec("Reward", "mean of judged samples", (("rl/reward/mean", "reward"),), scale="linear"),
    _Spec("Accuracy", "share of judged samples", (("rl/accuracy", "accuracy"),), zero=True,
          share=True, scale="linear"),
    _Spec("Output length against the window", "tokens",
          (("rl/length/p50", "median"), ("rl/length/p99", "p99"), ("rl/window", "window")),
          zero=True, scale="linear", steps=("rl/window",)),
    _Spec("Perplexity of sampled text", "exp(−mean log p)",  # noqa: RUF001
          (("rl/perplexity", "perplexity"), ("rl/perplexity/head", "first half"),
           ("rl/perplexity/tail", "last quarter"))),
    _Spec("Entropy", "nats per token",
          (("rl/entropy", "of the batch"), ("rl/update_entropy", "at each update")), zero=True,
          scale="linear"),
    _Spec("Tokens at the cap", "share of tokens",
          (("rl/is_weight/capped_fraction", "capped"),
           ("rl/is_weight/capped_fraction_positive", "capped, advantage > 0"),
           ("rl/is_weight/capped_fraction_negative", "capped, advantage < 0")),
          zero=True, share=True, scale="linear"),
    _Spec("Importance weight", "ratio, before the cap",
          (("rl/is_weight/p50", "p50"), ("rl/is_weight/p95", "p95"), ("rl/is_weight/p99", "p99"),
           ("rl/is_weight/max", "max")), reference=("cap", "rl.algorithm.is_weight_cap")),
    _Spec("Effective sample size", "share of tokens",
          (("rl/is_weight/effective_sample_size", "effective"),), zero=True, share=True,
          scale="linear"),
    _Spec("Gradient by position", "share of |weight × advantage|",  # noqa: RUF001
          (("rl/gradient_share/first_third", "first third"),
           ("rl/gradient_share/middle_third", "middle third"),
           ("rl/gradient_share/last_third", "last third"),
           ("rl/gradient_share/last_third_negative", "last third, advantage < 0")),
          zero=True, share=True, scale="linear"),
    _Spec("Gradient by sign", "share of |weight × advantage|",  # noqa: RUF001
          (("rl/gradient_share/positive", "advantage > 0"),
           ("rl/gradient_share/negative", "advantage < 0")), zero=True, share=True,
          scale="linear"),
    _Spec("Length of solved and unsolved answers", "tokens",
          (("rl/length_solved/p50", "solved, median"), ("rl/length_solved/p99", "solved, p99"),
           ("rl/length_unsolved/p50", "unsolved, median"),
           ("rl/length_unsolved/p99", "unsolved, p99")), zero=True, scale="linear"),
    _Spec("Reward against length", "correlation with its 95% interval",
          (("rl/correlation/all/reward_length", "reward"),
           ("rl/correlation/all/reward_length_low", "lower end"),
           ("rl/correlation/all/reward_length_high", "upper end"),
           ("rl/correlation/all/accuracy_length", "accuracy")), scale="linear"),
    _Spec("Sampler against trainer", "correlation of probabilities",
          (("rl/probability_correlation", "correlation"),), scale="linear",
          reference=("least", "rl.minimum_probability_correlation")),
    _Spec("Groups", "per batch", (("rl/groups/kept", "kept"), ("rl/groups/dropped", "dropped")),
          zero=True, scale="linear"),
    _Spec("Gradient norm", "before clipping", (("rl/grad_norm", "gradient norm"),)),
    _Spec("Objective", "loss as minimised", (("rl/loss", "loss"),), scale="linear"),
    _Spec("Tokens", "per batch",
          (("rl/tokens/generated", "generated"), ("rl/tokens/trained", "trained on"),
           ("rl/tokens/wasted", "wasted")), zero=True, scale="linear"),
    _Spec("Cut off or repeating", "share of answers",
          (("rl/truncated_share", "cut at the window"), ("rl/repetition_share", "repeating"),
           ("rl/unjudged_share", "not judged")), zero=True, share=True, scale="linear"),
)  # fmt: skip


@dataclass
class _Track:
    """Tasks of one kind, one after the other on a common step axis."""

    segments: list[Segment] = field(default_factory=list)
    series: dict[str, list[tuple[float, float]]] = field(default_factory=dict)


def draw(record: RunRecord) -> Safe:
    """All charts by track: training first, then RL, then whatever else was logged."""
    prefixes = list(dict.fromkeys(
        point.name.split("/", 1)[0]
        for task in record.metrics for point in task.points if not _shown_elsewhere(point.name)
    ))  # fmt: skip
    if not prefixes:
        return tag("p", "No metric was written yet.", class_="empty")
    known = [p for p in ("train", "rl") if p in prefixes]
    parts = []
    for prefix in known + [p for p in prefixes if p not in known]:
        parts.append(_section(prefix, record))
    return join(*parts)


def _section(prefix: str, record: RunRecord) -> Safe:
    track = _track(prefix, record.metrics)
    specs = {"train": TRAINING, "rl": RL}.get(prefix, ())
    titles = {"train": "Pretraining, context extension and SFT", "rl": "Reinforcement learning"}
    drawn = [_chart(spec, track, record.recipe) for spec in specs]
    listed = {name for spec in specs for name, _ in spec.names}
    others = [_chart(spec, track, {}) for spec in _unlisted(track, listed)]
    grid = tag("div", *drawn, class_="charts") if any(drawn) else None
    more: Safe | None = None
    if others:
        inner = tag("div", *others, class_="charts")
        summary = tag("summary", f"{len(others)} more chart{'' if len(others) == 1 else 's'}")
        more = tag("details", summary, inner, class_="more", open=not specs)
    return join(tag("h3", titles.get(prefix, prefix)), grid, more)


def _track(prefix: str, metrics: list[TaskMetrics]) -> _Track:
    """Concatenate tasks: each begins where the one before it ended, whatever it counts from."""
    track, offset = _Track(), 0
    for task in metrics:
        points = [
            p for p in task.points
            if p.name.split("/", 1)[0] == prefix and not _shown_elsewhere(p.name)
        ]  # fmt: skip
        if not points:
            continue
        first = min(p.step for p in points)
        length = max(p.step for p in points) - first + 1
        track.segments.append(Segment(task.stage, offset + 0.5, offset + length + 0.5))
        for p in sorted(points, key=lambda p: p.step):
            track.series.setdefault(p.name, []).append((offset + p.step - first + 1, p.value))
        offset += length
    return track


def _chart(spec: _Spec, track: _Track, recipe: dict[str, Any]) -> Safe:
    series = [
        Series(label, track.series[name], color, name in spec.steps)
        for color, (name, label) in enumerate(
            ((name, label) for name, label in spec.names if name in track.series), start=1
        )
    ]
    references = []
    if spec.reference and isinstance(value := lookup(recipe, spec.reference[1]), int | float):
        references.append(Reference(spec.reference[0], float(value)))
    return charts.draw(
        Chart(spec.title, spec.unit, series, track.segments, references,
              scale=spec.scale, zero=spec.zero, share=spec.share)
    )  # fmt: skip


def _shown_elsewhere(name: str) -> bool:
    return context.owns(name) or name.startswith(AUDIT_PREFIXES)


def _unlisted(track: _Track, listed: set[str]) -> list[_Spec]:
    """One chart for each common parent path, a few series each."""
    groups: dict[str, list[str]] = {}
    for name in track.series:
        if name not in listed:
            groups.setdefault(name.rpartition("/")[0] or name, []).append(name)
    return [
        _Spec(group, "as logged", tuple((n, n.rsplit("/", 1)[-1]) for n in names[i : i + _MOST]))
        for group, names in groups.items()
        for i in range(0, len(names), _MOST)
    ]


def lookup(recipe: dict[str, Any], dotted: str) -> Any:
    """A value of the recipe by dotted path; None when it is not there."""
    value: Any = recipe
    for key in dotted.split("."):
        if not isinstance(value, dict) or key not in value:
            return None
        value = value[key]
    return value
