"""In-progress checkpoints of a stage or round: what a killed task needs to go on exactly.

A checkpoint is a directory `step-<n>` that appears under its name complete, its manifest written
last. It belongs to one task and is never an input of another; the task deletes it once it has
published its result.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from longstride.errors import DataError
from longstride.store.artifacts import file_record
from longstride.store.files import read_json, write_json
from longstride.store.metrics import METRICS_FILE, MetricsWriter
from longstride.training.engine import Engine
from longstride.training.offsite import copies_of
from longstride.training.ranks import Ranks
from schemas.artifacts import FileRecord
from schemas.base import Contract

RESUME_VARIABLE = "LONGSTRIDE_RESUME_DIR"
MANIFEST = "in_progress.json"
SHARD_BYTES = 1 << 30
"""A shard is written once it holds this much, so that one rank never holds the whole state."""


class Position(Contract):
    """Where a stage stands, apart from tensors and metrics."""

    step: int = Field(ge=0)
    """Steps finished, skipped ones included. Of a stage: optimizer steps, which is also the
    position of the schedule. Of a round: batches begun, and updates."""
    tail: list[float] = Field(default_factory=list)
    """Losses that the final mean is taken over."""
    skipped_steps: int = Field(default=0, ge=0)
    """Steps skipped so far."""
    bad_steps_in_a_row: int = Field(default=0, ge=0)
    """Of these, the ones since the last good step."""
    validation_before: float = 0.0
    """Held-out loss before the first step."""
    observers: dict[str, Any] = Field(default_factory=dict)
    """JSON state of whatever watches the loop, by name."""


class _Manifest(Contract):
    key: dict[str, str]
    position: Position
    files: dict[str, FileRecord]


@dataclass(frozen=True)
class InProgress:
    """A checkpoint that was found whole and that belongs to this task."""

    directory: Path
    position: Position

    def weights(self) -> dict[str, Tensor]:
        """Names and fp32 weights."""
        return _read_shards(self.directory, "weights")

    def optimizer_state(self) -> dict[str, Tensor]:
        """Named tensors for `Engine.load_optimizer_state`."""
        return _read_shards(self.directory, "optimizer")

    def cursor(self) -> dict[str, Tensor]:
        """State of the row cursor, and `torch_rng`."""
        return load_file(self.directory / "cursor.safetensors")

    def metrics(self) -> bytes:
        """The rows of metrics.jsonl up to the checkpoint."""
        return (self.directory / METRICS_FILE).read_bytes()


def resume_directory(out: Path) -> Path:
    """Where a task with output `out` keeps its in-progress checkpoints.

    The embedded executor names a folder that all attempts of a task share; elsewhere it lies
    beside the output.
    """
    named = os.environ.get(RESUME_VARIABLE)
    return Path(named) if named else out.parent / f".{out.name}.in-progress"


def save(
    directory: Path,
    key: dict[str, str],
    position: Position,
    engine: Engine,
    cursor: dict[str, Tensor],
    metrics: Path,
) -> None:
    """Publish a checkpoint and drop older ones. Collective; the first rank writes."""
    first = engine.ranks.first
    partial = directory / ".partial"
    if first:
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
    _write_shards(partial if first else None, "weights", engine.weights())
    _write_shards(partial if first else None, "optimizer", engine.optimizer_state())
    if first:
        tensors = {**cursor, "torch_rng": torch.get_rng_state()}
        save_file(tensors, partial / "cursor.safetensors")
        shutil.copyfile(metrics / METRICS_FILE, partial / METRICS_FILE)
        files = {path.name: file_record(path) for path in sorted(partial.iterdir())}
        for name in files:
            _flush(partial / name)
        manifest = _Manifest(key=key, position=position, files=files)
        write_json(partial / MANIFEST, manifest)
        target = directory / f"step-{position.step:09d}"
        shutil.rmtree(target, ignore_errors=True)
        os.replace(partial, target)
        _flush(directory)
        for other in _checkpoints(directory):
            if other != target:
                shutil.rmtree(other)
        copy_offsite(directory, key)
    engine.ranks.barrier()


def copy_offsite(directory: Path, key: dict[str, str]) -> None:
    """Begin to copy the directory to where a machine that replaces this one finds it, if any."""
    copies = copies_of(key)
    if copies is not None:
        copies.put(directory)


def find(directory: Path, key: dict[str, str]) -> InProgress | None:
    """The newest whole checkpoint of this very task; others are discarded with a sentence."""
    for path in reversed(_checkpoints(directory)):
        try:
            manifest = read_json(path / MANIFEST, _Manifest)
            _verify(path, manifest)
        except DataError as error:
            print(f"discarding the in-progress checkpoint {path.name}: {error}")
            shutil.rmtree(path)
            continue
        names = sorted({*key, *manifest.key})
        differ = [name for name in names if manifest.key.get(name) != key.get(name)]
        if differ:
            print(
                f"discarding the in-progress checkpoint {path.name}: it was made with another "
                f"{' and another '.join(differ)}"
            )
            shutil.rmtree(path)
            continue
        return InProgress(path, manifest.position)
    return None


def find_on_ranks(directory: Path, key: dict[str, str], ranks: Ranks) -> InProgress | None:
    """The checkpoint to go on from: the first rank judges, and the others follow. Collective."""
    found = _find_anywhere(directory, key) if ranks.first else None
    exists = bool(ranks.total([float(found is not None)])[0])
    if exists and not ranks.first:
        found = _find_anywhere(directory, key)
    return found


def _find_anywhere(directory: Path, key: dict[str, str]) -> InProgress | None:
    """The newest checkpoint on this disk, else the newest copy of one."""
    found = find(directory, key)
    copies = copies_of(key)
    if found is None and copies is not None and copies.restore(directory):
        found = find(directory, key)
    return found


def open_metrics(directory: Path, ranks: Ranks, found: InProgress | None) -> MetricsWriter:
    """Open metrics.jsonl with exactly the rows up to the checkpoint; other ranks log nothing."""
    if not ranks.first:
        return MetricsWriter(None)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / METRICS_FILE).write_bytes(found.metrics() if found else b"")
    return MetricsWriter(directory)


def discard(directory: Path, key: dict[str, str]) -> None:
    """Remove all in-progress checkpoints of a task, copies included."""
    copies = copies_of(key)
    if copies is not None:
        copies.discard()
    shutil.rmtree(directory, ignore_errors=True)


def _checkpoints(directory: Path) -> list[Path]:
    return sorted(directory.glob("step-*"))


def _verify(path: Path, manifest: _Manifest) -> None:
    """Check every file against the manifest.

    Raises:
        DataError: A file is missing or differs.
    """
    for name, record in manifest.files.items():
        if not (path / name).is_file():
            raise DataError(f"{name} is missing")
        if file_record(path / name) != record:
            raise DataError(f"{name} is damaged: it does not match its sha256")


def _write_shards(directory: Path | None, kind: str, tensors: Iterator[tuple[str, Tensor]]) -> None:
    """Write tensors in shards of bounded size; without a directory, only take part in gathering."""
    shard: dict[str, Tensor] = {}
    size = number = 0
    for name, tensor in tensors:
        if directory is None:
            continue
        shard[name] = tensor.contiguous()
        size += tensor.numel() * tensor.element_size()
        if size >= SHARD_BYTES:
            save_file(shard, directory / f"{kind}-{number:05d}.safetensors")
            shard, size, number = {}, 0, number + 1
    if shard and directory is not None:
        save_file(shard, directory / f"{kind}-{number:05d}.safetensors")


def _read_shards(directory: Path, kind: str) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for path in sorted(directory.glob(f"{kind}-*.safetensors")):
        try:
            tensors |= load_file(path)
        except SafetensorError as error:
            raise DataError(f"{path} is corrupt ({error}); delete {directory}") from error
    return tensors


def _flush(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
