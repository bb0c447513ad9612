"""What measuring hands to the suite: numbers about rows and about the whole, never text.

Facts of rows go to a Parquet file in batches, so that a gate holds a batch in memory and not the
artifact. Facts of the whole are one small record.
"""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Literal, Self

from longstride.errors import DataError, GateCouldNotRun

Scalar = float | int | str | bool | None
RowFacts = dict[str, Scalar]
Kind = Literal["text", "flag", "count", "number"]
Columns = Mapping[str, Kind]
"""Name and kind of every fact of a row; each may be null."""

MEASURED: Final = "measured.parquet"
BATCH: Final = 4_096
"""Rows held in memory before they are written."""


@dataclass(frozen=True)
class MeasuredRows:
    """A finished file of measured rows."""

    path: Path
    count: int
    columns: Columns

    def scan(self) -> Any:
        """The rows as a polars LazyFrame."""
        import polars

        return polars.scan_parquet(self.path)

    def facts(self, **expressions: Any) -> RowFacts:
        """Facts of the whole by name, each a polars expression that gives one value."""
        found: RowFacts = (
            self.scan().select(**expressions).collect(engine="streaming").row(0, named=True)
        )
        return found

    def ids(self, condition: Any) -> list[str]:
        """Ids of the first rows for which a polars expression holds, at most `KEPT_CULPRITS`."""
        chosen = self.scan().filter(condition).select("id").head(KEPT_CULPRITS).collect()
        return [str(name) for name in chosen["id"]]


@dataclass
class Measured:
    """What is known of the subject of an edge.

    `rows` has one entry a row of the subject, each with an `id`; `summary` has one value a fact of
    the whole. None means that the rule does not apply to this row, or to this subject. `culprits`
    names the rows behind a summary fact, by the fact's name.
    """

    rows: MeasuredRows
    summary: RowFacts
    culprits: dict[str, list[str]] = field(default_factory=dict)


class RowWriter:
    """Appends measured rows to a Parquet file that appears under its name when it is complete."""

    def __init__(self, path: Path, columns: Columns, deadline: float | None = None) -> None:
        """Open a file for rows with exactly `columns`; `deadline` is in time.monotonic seconds."""
        import pyarrow
        from pyarrow import parquet

        kinds = {
            "text": pyarrow.string(),
            "flag": pyarrow.bool_(),
            "count": pyarrow.int64(),
            "number": pyarrow.float64(),
        }
        self.count = 0
        self._path, self._columns, self._deadline = path, columns, deadline
        self._partial = path.with_name(f".{path.name}.partial")
        self._schema = pyarrow.schema([(name, kinds[kind]) for name, kind in columns.items()])
        self._batch: dict[str, list[Scalar]] = {name: [] for name in columns}
        self._table = pyarrow.Table
        self._faults = (pyarrow.ArrowException, TypeError, OverflowError)
        self._file = parquet.ParquetWriter(self._partial, self._schema, compression="zstd")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:  # fmt: skip
        if kind is not None:
            self._file.close()
            self._partial.unlink(missing_ok=True)

    def append(self, row: RowFacts) -> None:
        """Add one row.

        Raises:
            GateCouldNotRun: The row lacks a column or has another, or the deadline has passed.
        """
        if row.keys() != self._columns.keys():
            raise GateCouldNotRun(
                f"row {row.get('id')!r} was measured in part: "
                f"{sorted(row.keys() ^ self._columns.keys())} differ from what its edge declares"
            )
        for name, values in self._batch.items():
            values.append(row[name])
        self.count += 1
        if self.count % BATCH == 0:
            self._flush()
        if self._deadline is not None and time.monotonic() > self._deadline:
            raise GateCouldNotRun(f"the deadline passed after {self.count} rows were measured")

    @property
    def scratch(self) -> Path:
        """Directory for files that measuring needs and nobody keeps."""
        return self._path.parent

    def finish(self, late: Mapping[str, set[int]] | None = None) -> MeasuredRows:
        """Write what is left and give the file its name.

        `late` holds, by flag, the row numbers for which it turned out to be true at the end.
        """
        self._flush()
        self._file.close()
        for name, numbers in (late or {}).items():
            if numbers:
                self._set_flag(name, numbers)
        os.replace(self._partial, self._path)
        return MeasuredRows(self._path, self.count, self._columns)

    def _set_flag(self, name: str, numbers: set[int]) -> None:
        import polars as pl

        chosen = pl.Series(sorted(numbers), dtype=pl.UInt32)
        flag = pl.when(pl.col("#").is_in(chosen.implode())).then(True).otherwise(pl.col(name))
        rewritten = self._partial.with_suffix(".late")
        frame = pl.scan_parquet(self._partial).with_row_index("#").with_columns(flag.alias(name))
        frame.drop("#").sink_parquet(rewritten)
        os.replace(rewritten, self._partial)

    def _flush(self) -> None:
        try:
            self._file.write_table(self._table.from_pydict(self._batch, schema=self._schema))
        except self._faults as error:
            raise GateCouldNotRun(
                f"measured rows up to {self.count} do not fit: {error}"
            ) from error
        for values in self._batch.values():
            values.clear()


KEPT_CULPRITS: Final = 1_000
"""Most rows that are remembered for one fact, the most that `quality.offenders` may ask for."""


class Tally:
    """Counts facts and remembers the first rows behind them."""

    def __init__(self) -> None:
        """Start at zero."""
        self.counts: Counter[str] = Counter()
        self.culprits: dict[str, list[str]] = {}

    def flag(self, fact: str, row: str, when: bool = True) -> bool:
        """Count `row` towards `fact` when the condition holds; return the condition."""
        if when:
            self.counts[fact] += 1
            names = self.culprits.setdefault(fact, [])
            if len(names) < KEPT_CULPRITS:
                names.append(row)
        return when

    def share(self, fact: str, total: int) -> float:
        """Share of `total` rows that were counted towards `fact`."""
        return self.counts[fact] / total if total else 0.0


class Seen:
    """Tells whether a value occurred before, by 64 bits of its digest."""

    def __init__(self) -> None:
        """Start empty."""
        self._keys: set[int] = set()

    def again(self, key: bytes) -> bool:
        """Whether this key (8 bytes or more of a digest) was asked about before."""
        value = int.from_bytes(key[:8], "little")
        if value in self._keys:
            return True
        self._keys.add(value)
        return False


def require_rows(count: int, path: object, what: str) -> None:
    """Refuse an artifact without rows; a gate never passes on nothing.

    Raises:
        DataError: There is no row.
    """
    if not count:
        raise DataError(f"{path} holds no {what}; rerun the step that writes it, with more input")
