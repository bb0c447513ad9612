"""Run a suite over what was measured; the only place that imports Great Expectations.

Great Expectations judges one row: the share of rows that obey each rule, counted by polars over all
rows (`profile`), and each fact of the whole. A rule that fails is judged once more on rows, on a
sample that holds its offenders first, which gives the evidence by id and keeps the counting honest:
where the two disagree, the gate could not run. So the suite, the counts and the verdict are the
same for a thousand rows and for a million, and one bad row in a million is found.

Great Expectations fails open in three ways, which are closed here before and after it runs: a null
is skipped, so that a column of nulls passes; NaN counts as null; an expectation that raised is an
unsuccessful result like any other. All of these are `GateCouldNotRun`.
"""

from __future__ import annotations

import math
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Final

from longstride.errors import GateCouldNotRun
from longstride.quality.frame import Measured, RowFacts, Scalar
from longstride.quality.profile import RuleCount, count_rules, evidence
from longstride.quality.suites import CheckSpec, Suite
from schemas.verdict import Check, Profile

SAMPLED: Final = 100_000
"""Most rows that Great Expectations sees."""
_SEVERITY = {"block": "critical", "warn": "warning", "info": "info"}


def run_suite(
    suite: Suite,
    measured: Measured,
    offenders: int,
    profile: Profile | None = None,
    before: Profile | None = None,
) -> list[Check]:
    """Judge every check of a resolved suite.

    Args:
        suite: The suite with thresholds filled in (`suites.resolve`).
        measured: What was measured.
        offenders: Row ids kept a failed check.
        profile: The numbers of the subject, which checks of level `drift` look at.
        before: The last blessed profile; without it drift is not applicable.

    Raises:
        GateCouldNotRun: There are no rows, a metric is missing, null or NaN, polars and Great
            Expectations disagree, or either raised. A gate that could not measure never passes.
    """
    of_rows = [spec for spec in suite.checks if spec.level == "rows"]
    counts = count_rules(suite.edge, of_rows, measured.rows) if of_rows else {}
    judged: RowFacts = {"id": "profile"}
    for spec in suite.checks:
        if spec.level == "rows":
            judged[spec.name] = counts[spec.name].obeying
        elif spec.level == "summary":
            _require_fact(suite.edge, spec, measured.summary)
            judged[spec.name] = measured.summary[spec.column]
        else:
            judged[spec.name] = _drifting(suite.edge, spec, profile)
            judged[f"{spec.name}/before"] = before.facts.get(spec.column) if before else None
    specs = [_over_profile(spec) for spec in suite.checks]
    outcome = _validate(suite.edge, specs, [judged], 1)
    results = {
        spec.name: result["success"] for spec, result in zip(suite.checks, outcome, strict=True)
    }
    failed = [spec for spec in of_rows if not results[spec.name]]
    named = _evidence(suite.edge, failed, measured, offenders) if failed else {}
    return [
        _as_check(spec, results[spec.name], _observed(spec, counts, judged), _culprits(
            spec, measured, named, offenders))
        for spec in suite.checks
    ]  # fmt: skip


def _over_profile(spec: CheckSpec) -> CheckSpec:
    """The same rule about the profile: for rows, the share that obeys."""
    if spec.level != "rows":
        return CheckSpec.model_construct(**{**dict(spec), "column": spec.name, "mostly": None})
    least = 1.0 if spec.mostly is None else float(spec.mostly)
    changes = {
        "column": spec.name,
        "expectation": "expect_column_values_to_be_between",
        "arguments": {"min_value": least},
        "mostly": None,
        "nullable": True,
    }
    return CheckSpec.model_construct(**{**dict(spec), **changes})


def _evidence(
    edge: str, failed: Sequence[CheckSpec], measured: Measured, offenders: int
) -> dict[str, list[str]]:
    """Ids of rows that break each failed rule, as Great Expectations names them on the sample."""
    strict = [CheckSpec.model_construct(**{**dict(spec), "mostly": None}) for spec in failed]
    sample = evidence(failed, measured.rows, offenders, SAMPLED)
    named = {}
    for spec, result in zip(strict, _validate(edge, strict, sample, offenders), strict=True):
        rows = result.get("partial_unexpected_index_list") or []
        if not result.get("unexpected_count"):
            raise GateCouldNotRun(
                f"{edge}/{spec.name}: rows were counted that break the rule, but Great "
                "Expectations finds none among them"
            )
        named[spec.name] = list(dict.fromkeys(str(row["id"]) for row in rows))[:offenders]
    return named


def rule_text(spec: CheckSpec) -> str:
    """The rule of a resolved check as text, for example `<= 0.01`."""
    rule = _condition(spec)
    if spec.level != "rows":
        return rule
    allowed = 0.0 if spec.mostly is None else 1.0 - float(spec.mostly)
    limit = "0 rows break" if allowed <= 0 else f"<= {allowed:.4g} of rows break"
    return f"{limit} `{spec.column} {rule}`"


def _condition(spec: CheckSpec) -> str:
    arguments = spec.arguments
    if spec.level == "drift":
        return f"within {arguments['relative']:.4g} of the last blessed run's"
    low, high = arguments.get("min_value"), arguments.get("max_value", arguments.get("limit"))
    if low is not None and high is not None:
        return f"in [{low:g}, {high:g}]" if low != high else f"= {low:g}"
    if low is not None:
        return f"{'>' if arguments.get('strict_min') else '>='} {low:g}"
    if high is not None:
        return f"{'<' if arguments.get('strict_max') else '<='} {high:g}"
    if "value_set" in arguments:
        values = ", ".join(str(value).lower() for value in arguments["value_set"])
        return f"= {values}" if len(arguments["value_set"]) == 1 else f"in {{{values}}}"
    if "unique" in _snake(spec.expectation):
        return "unique"
    return f"{_snake(spec.expectation).removeprefix('expect_')} {arguments}"


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def _require_fact(edge: str, spec: CheckSpec, summary: Mapping[str, Scalar]) -> None:
    """Close the ways in which Great Expectations would skip a missing measure."""
    if spec.column is None or spec.column not in summary:
        raise GateCouldNotRun(f"{edge}/{spec.name}: the metric {spec.column!r} was not measured")
    value = summary[spec.column]
    if isinstance(value, float) and math.isnan(value):
        raise GateCouldNotRun(f"{edge}/{spec.name}: {spec.column!r} is NaN")
    if value is None and not spec.nullable:
        raise GateCouldNotRun(f"{edge}/{spec.name}: {spec.column!r} could not be measured")


def _columns(spec: CheckSpec) -> list[str]:
    return [spec.column, f"{spec.column}/before"] if spec.level == "drift" else [spec.column]


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

    wanted = sorted({"id", *(name for spec in specs for name in _columns(spec))})
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
    from longstride.quality import expectations

    kind = getattr(expectations, name, None) or getattr(gx.expectations, name, None)
    if kind is None:
        raise GateCouldNotRun(f"check {spec.name!r}: there is no expectation {spec.expectation!r}")
    arguments = dict(spec.arguments)
    if spec.level == "drift":
        arguments |= dict(zip(("column_A", "column_B"), _columns(spec), strict=True))
    else:
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


def _observed(
    spec: CheckSpec, counts: Mapping[str, RuleCount], judged: Mapping[str, Scalar]
) -> Scalar:
    """Share of rows that break the rule, the fact of the whole, or its change; None: no case."""
    if spec.level == "rows":
        count = counts[spec.name]
        return count.broken / count.applies if count.applies else None
    value = judged[spec.name]
    if spec.level == "summary":
        return _plain(value)
    before = judged[f"{spec.name}/before"]
    return None if before is None else f"{_short(value)}, was {_short(before)}"


def _short(value: Scalar) -> str:
    return f"{value:.4g}" if isinstance(value, int | float) else str(value)


def _culprits(
    spec: CheckSpec, measured: Measured, named: Mapping[str, list[str]], offenders: int
) -> list[str]:
    if spec.level == "rows":
        return named.get(spec.name, [])
    return measured.culprits.get(spec.column, [])[:offenders]


def _as_check(spec: CheckSpec, passed: bool, observed: Scalar, culprits: list[str]) -> Check:
    text = rule_text(spec)
    if observed is None:
        observed = "not applicable"
        why = "no blessed run" if spec.level == "drift" else f"applies to {spec.applies}"
        text = f"{text} ({why})"
    return Check(
        name=spec.name,
        description=spec.description,
        severity=spec.severity,
        passed=passed,
        observed=observed,
        threshold=text,
        offenders=[] if passed else culprits,
        origin=spec.origin,
    )


def _drifting(edge: str, spec: CheckSpec, profile: Profile | None) -> float | None:
    if profile is None:
        raise GateCouldNotRun(f"{edge}/{spec.name}: drift needs a profile of the subject")
    if spec.column not in profile.facts and not spec.nullable:
        raise GateCouldNotRun(f"{edge}/{spec.name}: the profile lacks {spec.column!r}")
    return profile.facts.get(spec.column)


def _plain(value: Any) -> Scalar:
    """A numpy scalar as the Python value that it is; an infinite one as text."""
    if hasattr(value, "item"):
        value = value.item()
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value  # type: ignore[no-any-return]
