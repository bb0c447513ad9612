"""Copies of real artifacts with one fault each."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from longstride.store.artifacts import record_files


def copy(source: Path, out: Path) -> Path:
    return Path(shutil.copytree(source, out))


def truncate(path: Path, missing: int = 100) -> None:
    path.write_bytes(path.read_bytes()[:-missing])


def flip_a_byte(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(bytes(data))


def republish(directory: Path) -> None:
    """Make the manifest agree with the files: the fault was there when they were published."""
    for name in ("manifest.json", "checkpoint.json"):
        path = directory / name
        if path.exists():
            manifest = json.loads(path.read_text())
            files = record_files(directory, exclude=(name,))
            manifest["files"] = {key: record.model_dump() for key, record in files.items()}
            path.write_text(json.dumps(manifest))


def edit_rows(path: Path, change: Callable[[list[dict]], object]) -> None:
    """Change rows of a JSONL file in place, as another program would; the manifest agrees."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    change(rows)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    republish(path.parent)


def poison(directory: Path, tensor: str, value: float = float("nan")) -> None:
    """One weight of a checkpoint is no number, and its manifest says so: trained that way."""
    path = directory / "model.safetensors"
    tensors = {name: np.array(array) for name, array in load_file(path).items()}
    tensors[tensor].reshape(-1)[3] = value
    save_file(tensors, path)
    republish(directory)


def folder_source(uri: Path) -> str:
    """A recipe's list of sources in which the books come from a folder of the user's."""
    return json.dumps(
        [
            {"kind": "standard_library", "name": "stdlib-code", "domain": "code", "part": "code"},
            {"kind": "files", "name": "mine", "domain": "book", "uri": str(uri)},
            {"kind": "package_documentation", "name": "science-docs", "domain": "stem",
             "packages": ["numpy"]},
            {"kind": "package_documentation", "name": "tool-docs", "domain": "web",
             "packages": ["pydantic", "pip", "rich"]},
            {"kind": "reasoning_gym", "name": "reasoning-gym", "domain": "reasoning",
             "documents": 2000},
        ]
    )  # fmt: skip
