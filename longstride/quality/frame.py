"""What measuring hands to the suite: numbers about rows and about the whole, never text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from longstride.errors import DataError

Scalar = float | int | str | bool | None
RowFacts = dict[str, Scalar]


@dataclass
class Measured:
    """The measured frame of an edge.

    `rows` has one entry a row of the subject, each with an `id`; `summary` has one value a fact of
    the whole. None means that the rule does not apply to this row, or to this subject. `culprits`
    names the rows behind a summary fact, by the fact's name.
    """

    rows: list[RowFacts]
    summary: RowFacts
    culprits: dict[str, list[str]] = field(default_factory=dict)


class Tally:
    """Counts facts and remembers which rows stand behind them."""

    def __init__(self) -> None:
        """Start at zero."""
        self.counts: Counter[str] = Counter()
        self.culprits: dict[str, list[str]] = {}

    def flag(self, fact: str, row: str, when: bool = True) -> bool:
        """Count `row` towards `fact` when the condition holds; return the condition."""
        if when:
            self.counts[fact] += 1
            self.culprits.setdefault(fact, []).append(row)
        return when

    def share(self, fact: str, total: int) -> float:
        """Share of `total` rows that were counted towards `fact`."""
        return self.counts[fact] / total if total else 0.0


def require_rows(rows: Iterable[object], path: object, what: str) -> None:
    """Refuse an artifact without rows; a gate never passes on nothing.

    Raises:
        DataError: There is no row.
    """
    if not any(True for _ in rows):
        raise DataError(f"{path} holds no {what}; rerun the step that writes it, with more input")


def repeated(ids: Iterable[str]) -> set[str]:
    """Values that occur more than once."""
    return {value for value, count in Counter(ids).items() if count > 1}
