"""Exact facts of measured rows by polars: how many break each rule, which ones, and how they lie.

The counts are those that Great Expectations would find on the whole frame; it judges them as one
row, so that the cost does not grow with the artifact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from longstride.errors import GateCouldNotRun
from longstride.quality.frame import Measured, MeasuredRows, RowFacts
from longstride.quality.suites import CheckSpec
from schemas.recipe import Recipe
from schemas.verdict import ColumnProfile, Edge, Profile

BINS: Final = 24
QUANTILES: Final = (0.01, 0.5, 0.99)


@dataclass(frozen=True)
class RuleCount:
    """Rows that a rule applies to, and those of them that break it."""

    applies: int
    broken: int

    @property
    def obeying(self) -> float | None:
        """Share of rows that obey, as Great Expectations computes it; None: applies to none."""
        return (self.applies - self.broken) / self.applies if self.applies else None


def count_rules(edge: str, specs: Sequence[CheckSpec], rows: MeasuredRows) -> dict[str, RuleCount]:
    """Count what every rule of level `rows` finds, in one pass over the file.

    Raises:
        GateCouldNotRun: There is no row; a column is missing or holds NaN; a null where the suite
            allows none; a rule that has no form for streaming.
    """
    import polars as pl

    if not rows.count:
        raise GateCouldNotRun(f"{edge}: no row was measured; the gate fails closed")
    expressions: dict[str, Any] = {}
    for spec in specs:
        column = _column(edge, spec, rows)
        expressions[f"{spec.name}/null"] = pl.col(column).is_null().sum()
        if rows.columns[column] == "number":
            expressions[f"{spec.name}/nan"] = pl.col(column).is_nan().sum()
        expressions[f"{spec.name}/broken"] = broken(spec).fill_null(False).sum()
    try:
        found = rows.facts(**expressions)
    except pl.exceptions.PolarsError as error:
        raise GateCouldNotRun(f"{edge}: a rule cannot be counted: {error}") from error
    counts = {}
    for spec in specs:
        nulls = int(found[f"{spec.name}/null"] or 0)
        if found.get(f"{spec.name}/nan"):
            _refuse(edge, spec, rows, pl.col(spec.column).is_nan(), "is NaN")
        if nulls and not spec.nullable:
            missing = pl.col(spec.column).is_null()
            _refuse(edge, spec, rows, missing, "could not be measured")
        counts[spec.name] = RuleCount(rows.count - nulls, int(found[f"{spec.name}/broken"] or 0))
    return counts


def _column(edge: str, spec: CheckSpec, rows: MeasuredRows) -> str:
    if spec.column is None or spec.column not in rows.columns:
        raise GateCouldNotRun(f"{edge}/{spec.name}: the metric {spec.column!r} was not measured")
    return spec.column


def _refuse(edge: str, spec: CheckSpec, rows: MeasuredRows, where: Any, what: str) -> None:
    first = rows.ids(where)[0]
    raise GateCouldNotRun(f"{edge}/{spec.name}: {spec.column!r} {what} for row {first!r}")


def broken(spec: CheckSpec) -> Any:
    """A polars expression that is true on rows that break the rule, and null where it is null.

    Raises:
        GateCouldNotRun: The expectation has no form for streaming.
    """
    import polars as pl

    column, arguments = pl.col(spec.column), dict(spec.arguments)
    if spec.expectation == "expect_column_values_to_be_unique" and not arguments:
        return column.is_duplicated() & column.is_not_null()
    if spec.expectation == "expect_column_values_to_be_in_set":
        values = arguments.pop("value_set", None)
        if values and not arguments:
            return ~column.is_in(values)
    if spec.expectation == "expect_column_values_to_be_between":
        low, high = arguments.pop("min_value", None), arguments.pop("max_value", None)
        strict_low = arguments.pop("strict_min", False)
        strict_high = arguments.pop("strict_max", False)
        if not arguments and (low is not None or high is not None):
            _require_order(spec, low, high)
            rules = []
            if low is not None:
                rules.append(column <= low if strict_low else column < low)
            if high is not None:
                rules.append(column >= high if strict_high else column > high)
            return rules[0] if len(rules) == 1 else rules[0] | rules[1]
    raise GateCouldNotRun(
        f"check {spec.name!r}: {spec.expectation} with {sorted(spec.arguments)} cannot be counted "
        "over rows; measure it as a fact of the whole (level: summary)"
    )


def _require_order(spec: CheckSpec, low: float | None, high: float | None) -> None:
    if low is not None and high is not None and low > high:
        raise GateCouldNotRun(f"check {spec.name!r}: min_value {low} exceeds max_value {high}")


def evidence(
    specs: Sequence[CheckSpec], rows: MeasuredRows, each: int, most: int
) -> list[RowFacts]:
    """Rows that break the given rules first, then others up to a thousand, at most `most`.

    Args:
        specs: Rules of level `rows` that some row breaks.
        rows: The measured rows.
        each: Rows of each rule; a repeated value comes with its repetition.
        most: Rows in all.
    """
    import polars as pl

    wanted = sorted({"id", *(spec.column for spec in specs)})
    numbered = rows.scan().select(wanted).with_row_index("#")
    chosen = []
    for spec in specs:
        unique = spec.expectation == "expect_column_values_to_be_unique"
        found = numbered.filter(broken(spec).fill_null(False))
        if unique:
            found = found.sort(spec.column, "#")
        chosen.append(found.head(max(2, each) if unique else max(1, each)))
    offenders = pl.concat(chosen).unique("#").sort("#").head(most)
    frame = pl.concat([offenders, numbered.head(min(most, 1_000))]).unique(
        "#", keep="first", maintain_order=True
    )
    found_rows: list[RowFacts] = frame.head(most).drop("#").collect().to_dicts()
    return found_rows


def profile_columns(rows: MeasuredRows) -> dict[str, ColumnProfile]:
    """How the values of every column of numbers lie: quantiles, mean and a histogram."""
    import polars as pl

    names = sorted(name for name, kind in rows.columns.items() if kind in ("count", "number"))
    if not names:
        return {}
    asked: dict[str, Any] = {}
    for name in names:
        values = pl.col(name).cast(pl.Float64)
        values = values.filter(values.is_finite())
        asked |= {f"{name}/n": values.count(), f"{name}/low": values.min(),
                  f"{name}/high": values.max(), f"{name}/mean": values.mean()}  # fmt: skip
        for q in QUANTILES:
            asked[f"{name}/{q}"] = values.quantile(q, "nearest")
    found = rows.facts(**asked)
    ranges = {
        name: (float(found[f"{name}/low"] or 0.0), float(found[f"{name}/high"] or 0.0))
        for name in names
        if found[f"{name}/n"]
    }
    heights = _histograms(rows, ranges)
    return {
        name: ColumnProfile(
            count=int(found[f"{name}/n"] or 0),
            low=low,
            high=high,
            mean=float(found[f"{name}/mean"] or 0.0),
            p01=float(found[f"{name}/0.01"] or 0.0),
            p50=float(found[f"{name}/0.5"] or 0.0),
            p99=float(found[f"{name}/0.99"] or 0.0),
            histogram=heights[name],
        )
        for name, (low, high) in ranges.items()
    }


def _histograms(rows: MeasuredRows, ranges: dict[str, tuple[float, float]]) -> dict[str, list[int]]:
    """Rows in each of `BINS` equal bins from low to high; one bin where all values are equal."""
    import polars as pl

    asked: dict[str, Any] = {}
    for name, (low, high) in ranges.items():
        values = pl.col(name).cast(pl.Float64)
        values = values.filter(values.is_finite())
        width = (high - low) / BINS
        if width <= 0 or not math.isfinite(width):
            asked[name] = values.count().cast(pl.UInt32).implode()
            continue
        bins = ((values - low) / width).floor().clip(0, BINS - 1)
        asked[name] = pl.concat_list([(bins == b).sum() for b in range(BINS)])
    if not asked:
        return {}
    found: Any = rows.facts(**asked)
    return {name: [int(n) for n in found[name]] for name in ranges}


def make_profile(
    edge: Edge, stage: str, recipe: Recipe, subject_digest: str, measured: Measured
) -> Profile:
    """The numbers of a subject that its page shows and the next run's drift is told against."""
    columns = profile_columns(measured.rows)
    facts = {"rows": float(measured.rows.count)}
    for name, value in measured.summary.items():
        if isinstance(value, int | float) and math.isfinite(value):
            facts[name] = float(value)
    for name, column in columns.items():
        facts |= {f"{name}/{part}": getattr(column, part) for part in ("mean", "p50", "p99")}
    return Profile(
        edge=edge, stage=stage, recipe=recipe.name, subject_digest=subject_digest,
        facts=facts, columns=columns,
    )  # fmt: skip
