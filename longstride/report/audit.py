"""The audit of RL updates: what each off-policy round did to reflection tokens and to others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from longstride.report import charts, figures
from longstride.report.charts import Chart, Reference, Series
from longstride.report.curves import lookup
from longstride.report.markup import Safe, join, tag
from schemas.audit import ALL_REFLECTIONS, OTHER_TOKENS, AuditRow
from schemas.run import RunRecord

_MEASURES = (
    "tokens", "probability_old", "probability_new", "ratio", "capped", "ppo_dropped", "gradient",
    "ppo_dropped_gradient",
)  # fmt: skip
_PARTS = (ALL_REFLECTIONS, OTHER_TOKENS)
Sums = dict[str, float]
Share = Callable[[Sums, Sums], float | None]


def draw(record: RunRecord) -> Safe:
    """Charts by off-policy round, charts by RL round, and a table by bucket."""
    rows = [row for listed in record.audit.values() for row in listed]
    if not rows:
        return tag("p", _why_empty(record), class_="empty")
    clip = _clip(record)
    cap = lookup(record.recipe, "rl.algorithm.is_weight_cap")
    by_update = _grouped(rows, lambda row: row.off_policy_round)
    by_stage = {
        number: _sums(listed) for number, listed in enumerate(record.audit.values(), start=1)
    }
    references = [Reference("cap", float(cap))] if isinstance(cap, int | float) else []
    drawn = [
        _chart("Ratio to the old policy", "mean, before the cap", by_update, _mean("ratio"),
               references=references),
        _chart("A PPO clip would drop", f"share of tokens, clip {clip}", by_update,
               _mean("ppo_dropped"), share=True),
        _chart("Tokens at the cap", "share of tokens", by_update, _mean("capped"), share=True),
        _chart("Share of the gradient", "of |weight × advantage|", by_update, _of_whole,  # noqa: RUF001
               parts=(ALL_REFLECTIONS,), share=True),
        _chart("Probability of reflection", "mean over its sampled tokens, before a batch",
               by_stage, _mean("probability_old"), parts=_reflections(rows), x="RL round"),
        _chart("How often it reflects", "share of sampled tokens", by_stage, _token_share,
               parts=_reflections(rows), share=True, x="RL round"),
    ]  # fmt: skip
    return join(tag("div", *drawn, class_="charts"), _table(_sums(rows), clip))


def _why_empty(record: RunRecord) -> str:
    """What became of the groups that were sampled, if any were."""
    counts: dict[str, float] = {}
    for task in record.metrics:
        for point in task.points:
            if point.name.startswith("rl/groups/") and point.name != "rl/groups/waves":
                name = point.name.removeprefix("rl/groups/").replace("_", " ")
                counts[name] = counts.get(name, 0.0) + point.value
    said = ", ".join(f"{count:,.0f} {name}" for name, count in counts.items() if count)
    return f"No update was taken yet. Groups: {said}." if said else "No update was taken yet."


def _clip(record: RunRecord) -> str:
    low, high = (lookup(record.recipe, f"rl.audit.clip_{side}") for side in ("low", "high"))
    if not isinstance(low, int | float) or not isinstance(high, int | float):
        return "of the recipe"
    return f"{figures.number(1 - low)} to {figures.number(1 + high)}"


def _reflections(rows: Iterable[AuditRow]) -> tuple[str, ...]:
    """All buckets of reflection words that occur, the whole of them first."""
    found = dict.fromkeys(row.bucket for row in rows if row.bucket != OTHER_TOKENS)
    found.pop(ALL_REFLECTIONS, None)
    return (ALL_REFLECTIONS, *list(found)[:7])


def _sums(rows: Iterable[AuditRow]) -> dict[str, Sums]:
    """Every measure added up by bucket."""
    sums: dict[str, Sums] = {}
    for row in rows:
        own = sums.setdefault(row.bucket, dict.fromkeys(_MEASURES, 0.0))
        for name in _MEASURES:
            own[name] += getattr(row, name)
    return sums


def _grouped(
    rows: Iterable[AuditRow], key: Callable[[AuditRow], int]
) -> dict[int, dict[str, Sums]]:
    groups: dict[int, list[AuditRow]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return {place: _sums(listed) for place, listed in sorted(groups.items())}


def _whole(sums: Mapping[str, Sums]) -> Sums:
    """Over all tokens: the named buckets are parts of `reflection`."""
    return {name: sum(sums[part][name] for part in _PARTS if part in sums) for name in _MEASURES}


def _mean(measure: str) -> Share:
    return lambda own, whole: own[measure] / own["tokens"] if own["tokens"] else None


def _of_whole(own: Sums, whole: Sums) -> float | None:
    return own["gradient"] / whole["gradient"] if whole["gradient"] else None


def _token_share(own: Sums, whole: Sums) -> float | None:
    return own["tokens"] / whole["tokens"] if whole["tokens"] else None


def _chart(
    title: str,
    unit: str,
    groups: Mapping[int, Mapping[str, Sums]],
    share_of: Share,
    *,
    parts: tuple[str, ...] = _PARTS,
    references: list[Reference] | None = None,
    share: bool = False,
    x: str = "off-policy round",
) -> Safe:
    series = []
    for color, bucket in enumerate(parts, start=1):
        points = []
        for place, sums in groups.items():
            if bucket in sums:
                value = share_of(sums[bucket], _whole(sums))
                if value is not None:
                    points.append((float(place), value))
        series.append(Series(bucket, points, color))
    return charts.draw(
        Chart(title, unit, series, [], references or [], x_label=x, share=share,
              scale="linear" if share else "auto", zero=share)
    )  # fmt: skip


def _table(sums: Mapping[str, Sums], clip: str) -> Safe:
    whole = _whole(sums)
    heads = ("tokens", "of all tokens", "probability", "change", "ratio", "at the cap",
             f"clip {clip} drops", "of the gradient", "of it dropped")  # fmt: skip
    head = tag("tr", tag("th", "Bucket", scope="col"),
               *(tag("th", name, class_="num", scope="col") for name in heads))  # fmt: skip
    order = [*(name for name in sums if name not in _PARTS), *(p for p in _PARTS if p in sums)]
    body = [tag("tr", tag("td", name), *_cells(sums[name], whole)) for name in order]
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="context")
    return tag("div", table, class_="scroll")


def _cells(own: Sums, whole: Sums) -> list[Safe]:
    def per(measure: str, of: float) -> float | None:
        return own[measure] / of if of else None

    change = per("probability_new", own["tokens"]), per("probability_old", own["tokens"])
    difference = None if change[0] is None or change[1] is None else change[0] - change[1]
    texts = (
        f"{int(own['tokens']):,}",
        figures.percent(per("tokens", whole["tokens"])),
        figures.number(change[1], 3),
        figures.number(difference, 3),
        figures.number(per("ratio", own["tokens"]), 3),
        figures.percent(per("capped", own["tokens"])),
        figures.percent(per("ppo_dropped", own["tokens"])),
        figures.percent(per("gradient", whole["gradient"])),
        figures.percent(per("ppo_dropped_gradient", own["gradient"])),
    )
    return [tag("td", text, class_="num") for text in texts]
