"""Expectations of our own, where Great Expectations has none. Imported with it, never before.

Legend: a pair of columns holds a value of this run and the one that it is told against.
"""

from __future__ import annotations

from typing import Any, Literal

import pandas
from great_expectations.execution_engine.pandas_execution_engine import PandasExecutionEngine
from great_expectations.expectations.expectation import (
    ColumnMapExpectation,
    ColumnPairMapExpectation,
)
from great_expectations.expectations.metrics.map_metric_provider.column_condition_partial import (
    column_condition_partial,
)
from great_expectations.expectations.metrics.map_metric_provider.column_map_metric_provider import (
    ColumnMapMetricProvider,
)
from great_expectations.expectations.metrics.map_metric_provider.column_pair_condition_partial import (  # noqa: E501
    column_pair_condition_partial,
)
from great_expectations.expectations.metrics.map_metric_provider.column_pair_map_metric_provider import (  # noqa: E501
    ColumnPairMapMetricProvider,
)


class RelativeDrift(ColumnPairMapMetricProvider):
    """|value - before| <= max(relative * |before|, absolute), row by row."""

    condition_metric_name = "column_pair_values.within_drift"
    condition_domain_keys = ("batch_id", "table", "column_A", "column_B", "row_condition",
                             "condition_parser", "ignore_row_if")  # fmt: skip
    condition_value_keys = ("relative", "absolute")

    @column_pair_condition_partial(engine=PandasExecutionEngine)  # type: ignore[untyped-decorator]
    def _pandas(
        cls, column_A: Any, column_B: Any, relative: float, absolute: float, **_: Any
    ) -> Any:
        value, before = pandas.to_numeric(column_A), pandas.to_numeric(column_B)
        allowed = (before.abs() * relative).clip(lower=absolute)
        return (value - before).abs() <= allowed


class ExpectDriftToBeWithin(ColumnPairMapExpectation):
    """Expect a number to lie near the one of the last blessed run."""

    map_metric = "column_pair_values.within_drift"
    domain_keys = (  # type: ignore[assignment]
        "batch_id", "table", "column_A", "column_B", "row_condition", "condition_parser",
        "ignore_row_if",
    )  # fmt: skip
    success_keys = ("relative", "absolute", "mostly")

    relative: float
    absolute: float = 0.0
    ignore_row_if: Literal["both_values_are_missing", "either_value_is_missing", "neither"] = (
        "either_value_is_missing"
    )


class DivergenceSound(ColumnMapMetricProvider):
    """0 <= KL <= limit; a divergence below 0 is an error of measuring and breaks the rule too."""

    condition_metric_name = "column_values.divergence_at_most"
    condition_value_keys = ("limit",)

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: Any, limit: float, **_: Any) -> Any:
        values = pandas.to_numeric(column)
        return (values >= -1e-9) & (values <= limit)


class ExpectMixtureDivergenceToBeAtMost(ColumnMapExpectation):
    """Expect the KL divergence of a mixture from its target, in nats, to be small."""

    map_metric = "column_values.divergence_at_most"
    success_keys = ("limit", "mostly")

    limit: float


class ResidueSound(ColumnMapMetricProvider):
    """A share of documents that nearly repeat an earlier one, hence within 0 and 1."""

    condition_metric_name = "column_values.residue_at_most"
    condition_value_keys = ("limit",)

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: Any, limit: float, **_: Any) -> Any:
        values = pandas.to_numeric(column)
        return (values >= 0.0) & (values <= min(1.0, limit))


class ExpectNearDuplicateResidueToBeAtMost(ColumnMapExpectation):
    """Expect few documents to nearly repeat an earlier one by MinHash."""

    map_metric = "column_values.residue_at_most"
    success_keys = ("limit", "mostly")

    limit: float


class CorrelationNotSurely(ColumnMapMetricProvider):
    """The end nearest to 0 of a correlation's 95% interval is within the limit."""

    condition_metric_name = "column_values.correlation_not_surely_above"
    condition_value_keys = ("limit",)

    @column_condition_partial(engine=PandasExecutionEngine)
    def _pandas(cls, column: Any, limit: float, **_: Any) -> Any:
        values = pandas.to_numeric(column)
        return (values >= 0.0) & (values <= 1.0) & (values <= limit)


class ExpectCorrelationNotSurelyAbove(ColumnMapExpectation):
    """Expect no correlation whose 95% interval lies beyond the limit on either side."""

    map_metric = "column_values.correlation_not_surely_above"
    success_keys = ("limit", "mostly")

    limit: float
