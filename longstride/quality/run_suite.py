"""Run a suite over measured frames; the only place that imports Great Expectations.

Great Expectations judges two pandas frames: one row a measured row, and one row for the summary. It
fails open in three ways, which are closed here before and after it runs: a null is skipped, so that
a column of nulls passes; NaN counts as null; an expectation that raised is an unsuccessful result
like any other. All of these are `GateCouldNotRun`.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Sequence
from typing import Any

from longstride.errors import GateCouldNotRun
from longstride.quality.frame import Measured, RowFacts, Scalar
from longstride.quality.suites import CheckSpec, Suite
from schemas.verdict import Check

_SEVERITY = {"block": "critical", "warn": "warning", "info": "info"}


def run_suite(suite: Suite, measured: Measured, offenders: int) -> list[Check]:
    """Judge every check of a resolved suite.

    Args:
        suite: The suite with thresholds filled in (`suites.resolve`).
        measured: What was measured.
        offenders: Row ids kept a failed check.

    Raises:
        GateCouldNotRun: A frame is empty, a metric is missing, null or NaN, or Great Expectations
            raised. A gate that could not measure never passes.
    """
    frames = {"rows": measured.rows, "summary": [measured.summary]}
    found: dict[str, Check] = {}
    for level, frame in frames.items():
        specs = [spec for spec in suite.checks if spec.level == level]
        if not specs:
            continue
        for spec in specs:
            _require_measured(suite.edge, spec, frame)
        for spec, result in zip(specs, _validate(suite.edge, specs, frame, offenders), strict=True):
            found[spec.name] = _as_check(suite.edge, spec, result, measured, offenders)
    return [found[spec.name] for spec in suite.checks]


def rule_text(spec: CheckSpec) -> str:
    """The rule of a resolved check as text, for example `<= 0.01`."""
    rule = _condition(spec)
    if spec.level == "summary" or not _is_map(spec):
        return rule
    allowed = 0.0 if spec.mostly is None else 1.0 - float(spec.mostly)
    limit = "0 rows break" if allowed <= 0 else f"<= {allowed:.4g} of rows break"
    return f"{limit} `{_subject(spec)} {rule}`"


def _subject(spec: CheckSpec) -> str:
    return spec.column or str(spec.arguments.get("column_A", "value"))


def _condition(spec: CheckSpec) -> str:
    arguments = spec.arguments
    low, high = arguments.get("min_value"), arguments.get("max_value")
    if low is not None and high is not None:
        return f"in [{low:g}, {high:g}]" if low != high else f"= {low:g}"
    if low is not None:
        return f"{'>' if arguments.get('strict_min') else '>='} {low:g}"
    if high is not None:
        return f"{'<' if arguments.get('strict_max') else '<='} {high:g}"
    if "value_set" in arguments:
        values = ", ".join(str(value).lower() for value in arguments["value_set"])
        return f"= {values}" if len(arguments["value_set"]) == 1 else f"in {{{values}}}"
    if "column_B" in arguments:
        return f"= {arguments['column_B']}"
    if "unique" in _snake(spec.expectation):
        return "unique"
    return f"{_snake(spec.expectation).removeprefix('expect_')} {arguments}"


def _is_map(spec: CheckSpec) -> bool:
    return "_values_to_" in _snake(spec.expectation)


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _columns(spec: CheckSpec) -> list[str]:
    pair = [spec.arguments.get("column_A"), spec.arguments.get("column_B")]
    return [name for name in (spec.column, *pair) if name is not None]


def _require_measured(edge: str, spec: CheckSpec, frame: Sequence[RowFacts]) -> None:
    """Close the ways in which Great Expectations would skip a missing measure."""
    if not frame:
        raise GateCouldNotRun(f"{edge}/{spec.name}: no row was measured; the gate fails closed")
    for column in _columns(spec):
        for row in frame:
            where = "" if spec.level == "summary" else f" for row {row.get('id')!r}"
            if column not in row:
                raise GateCouldNotRun(
                    f"{edge}/{spec.name}: the metric {column!r} was not measured{where}"
                )
            value = row[column]
            if isinstance(value, float) and math.isnan(value):
                raise GateCouldNotRun(f"{edge}/{spec.name}: {column!r} is NaN{where}")
            if value is None and not spec.nullable:
                raise GateCouldNotRun(
                    f"{edge}/{spec.name}: {column!r} could not be measured{where}"
                )


def _great_expectations() -> Any:
    os.environ.setdefault("GX_ANALYTICS_ENABLED", "false")
    with warnings.catch_warnings():
        # It imports modules that the standard library has deprecated.
        warnings.simplefilter("ignore")
        import great_expectations
    return great_expectations


def _validate(
    edge: str, specs: Sequence[CheckSpec], frame: Sequence[RowFacts], offenders: int
) -> list[dict[str, Any]]:
    """One validation of one frame; results in the order of `specs`."""
    gx = _great_expectations()
    import pandas
    from great_expectations.data_context.types.base import ProgressBarsConfig

    wanted = sorted({"id", *(column for spec in specs for column in _columns(spec))})
    table = pandas.DataFrame([{name: row.get(name) for name in wanted} for row in frame])
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            context = gx.get_context(mode="ephemeral")
            context.variables.progress_bars = ProgressBarsConfig(
                globally=False, metric_calculations=False
            )
            asset = context.data_sources.add_pandas("measured").add_dataframe_asset("frame")
            batch = asset.add_batch_definition_whole_dataframe("all").get_batch(
                {"dataframe": table}
            )
            suite = gx.ExpectationSuite(name=edge)
            for spec in specs:
                suite.add_expectation(_expectation(gx, spec))
            outcome = batch.validate(
                suite,
                result_format={
                    "result_format": "SUMMARY",
                    "unexpected_index_column_names": ["id"],
                    "partial_unexpected_count": max(1, offenders),
                },
            )
    except (
        gx.exceptions.GreatExpectationsError, AttributeError, LookupError, TypeError, ValueError,
    ) as error:  # fmt: skip
        raise GateCouldNotRun(
            f"{edge}: Great Expectations could not judge the frame: {type(error).__name__}: {error}"
        ) from error
    by_name = {result.expectation_config.meta["check"]: result for result in outcome.results}
    if missing := [spec.name for spec in specs if spec.name not in by_name]:
        raise GateCouldNotRun(f"{edge}: Great Expectations returned no result for {missing}")
    return [_plain_result(edge, spec, by_name[spec.name]) for spec in specs]


def _expectation(gx: Any, spec: CheckSpec) -> Any:
    name = spec.expectation
    if name.startswith("expect_"):
        name = "".join(part.capitalize() for part in name.split("_"))
    kind = getattr(gx.expectations, name, None)
    if kind is None:
        raise GateCouldNotRun(f"check {spec.name!r}: there is no expectation {spec.expectation!r}")
    arguments = dict(spec.arguments)
    if spec.column is not None:
        arguments["column"] = spec.column
    if spec.mostly is not None:
        arguments["mostly"] = spec.mostly
    return kind(**arguments, severity=_SEVERITY[spec.severity], meta={"check": spec.name})


def _plain_result(edge: str, spec: CheckSpec, result: Any) -> dict[str, Any]:
    """A result as plain Python values; one that raised is refused."""
    info = result.exception_info or {}
    # One flat record, or one record a metric when metrics failed before the expectation ran.
    records = [info] if "raised_exception" in info else list(info.values())
    for record in records:
        if record.get("raised_exception"):
            message = str(record.get("exception_message")).strip().splitlines()[0]
            raise GateCouldNotRun(f"{edge}/{spec.name}: Great Expectations raised: {message}")
    return {"success": bool(result.success), **result.result}


def _as_check(
    edge: str, spec: CheckSpec, result: dict[str, Any], measured: Measured, offenders: int
) -> Check:
    observed = _observed(edge, spec, result, measured)
    passed = result["success"]
    text = rule_text(spec)
    if observed is None:
        observed, text = "not applicable", f"{text} (nothing here that the rule applies to)"
    return Check(
        name=spec.name,
        description=spec.description,
        severity=spec.severity,
        passed=passed,
        observed=observed,
        threshold=text,
        offenders=[] if passed else _offenders(spec, result, measured, offenders),
        origin=spec.origin,
    )


def _observed(edge: str, spec: CheckSpec, result: dict[str, Any], measured: Measured) -> Scalar:
    if spec.level == "summary" and spec.column is not None:
        return _plain(measured.summary[spec.column])
    if "unexpected_count" in result:
        applies = result["element_count"] - result.get("missing_count", 0)
        return result["unexpected_count"] / applies if applies else None
    value = result.get("observed_value")
    if isinstance(value, dict) and len(value.get("values", [])) == 1:
        value = value["values"][0]
    if value is None or isinstance(value, dict | list):
        raise GateCouldNotRun(f"{edge}/{spec.name}: no single observed value in {result}")
    return _plain(value)


def _plain(value: Any) -> Scalar:
    """A numpy scalar as the Python value that it is; an infinite one as text."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value  # type: ignore[no-any-return]


def _offenders(
    spec: CheckSpec, result: dict[str, Any], measured: Measured, limit: int
) -> list[str]:
    if spec.level == "summary":
        return measured.culprits.get(spec.column or "", [])[:limit]
    rows = result.get("partial_unexpected_index_list") or []
    return [str(row["id"]) for row in rows][:limit]
