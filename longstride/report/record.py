"""A run record with what only the collector knows."""

from __future__ import annotations

from pydantic import Field

from schemas.base import Contract
from schemas.run import RunRecord


class AttemptRecord(Contract):
    """One try of a task."""

    number: int
    """From 1."""
    started_at: float | None = None
    """Unix seconds."""
    finished_at: float | None = None
    """Unix seconds."""
    error: str | None = None
    """Why it failed."""
    log: str | None = None
    """Path of its log file."""


class CollectedRun(RunRecord):
    """What `collect` found; everything here is optional for rendering."""

    notes: list[str] = Field(default_factory=list)
    """What is missing or malformed, in sentences."""
    verdict_tasks: list[str] = Field(default_factory=list)
    """Path of the gate task of each verdict, aligned with `verdicts`; empty string: not known."""
    attempt_log: dict[str, list[AttemptRecord]] = Field(default_factory=dict)
    """Every attempt by task path."""
    cache_reasons: dict[str, str] = Field(default_factory=dict)
    """Why the cache hit or missed, by task path."""


def collected(record: RunRecord) -> CollectedRun:
    """The record with its extras, none where it came without."""
    if isinstance(record, CollectedRun):
        return record
    fields = {name: getattr(record, name) for name in RunRecord.model_fields}
    return CollectedRun.model_construct(
        **fields, notes=[], verdict_tasks=[], attempt_log={}, cache_reasons={}
    )
