"""Weights and tokenizer that a run starts from instead of fresh ones, pinned by their content."""

from __future__ import annotations

import hashlib
from pathlib import Path

from longstride.errors import RecipeError
from longstride.store.artifacts import file_record
from schemas.stages import StartingPoint

_PARTS = ("config.json", "tokenizer.json", "*.safetensors", "*.safetensors.index.json")


def folder_digest(folder: Path) -> str:
    """Digest of what a run reads of a checkpoint folder: configuration, tokenizer, weights."""
    content = hashlib.sha256()
    for path in sorted({path for pattern in _PARTS for path in folder.glob(pattern)}):
        content.update(f"{path.name} {file_record(path).sha256}\n".encode())
    return "sha256:" + content.hexdigest()


def open_starting_point(start: StartingPoint) -> Path:
    """Return the folder after checking that it holds what the recipe was written for.

    Raises:
        RecipeError: The folder or a file of it is missing, or the content is another one.
    """
    folder = Path(start.path.removeprefix("file://")).expanduser()
    for name in ("config.json", "tokenizer.json"):
        if not (folder / name).is_file():
            raise RecipeError(
                f"start_from.path: {folder} has no {name}; give a Hugging Face checkpoint folder "
                "with config.json, tokenizer.json and safetensors files, at a path that every task "
                "can read"
            )
    found = folder_digest(folder)
    if found != start.digest:
        raise RecipeError(
            f"start_from.digest is {start.digest} but {folder} holds {found}; if that is the "
            "folder you mean, write its digest into the recipe"
        )
    return folder
