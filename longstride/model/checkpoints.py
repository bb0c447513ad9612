"""Weights on disk: `model.safetensors` and `config.json`, checked in full when read.

Nothing here is ever unpickled, and no tensor reaches a model before names, shapes, types and
finiteness have been checked.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import torch
from pydantic import ValidationError
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from schemas.model import ModelConfig

WEIGHTS = "model.safetensors"
CONFIG = "config.json"
_FIX = "restore the checkpoint from its source, or rerun the stage that wrote it"
_MODEL_TYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)


def save_model(model: HybridModel, directory: Path | str) -> None:
    """Write the weights and then the configuration, each file atomically.

    Raises:
        CheckpointError: a weight is NaN or infinite; nothing is written.
    """
    folder = Path(directory)
    tensors = {n: t.detach().to("cpu").contiguous() for n, t in model.state_dict().items()}
    _check_finite(tensors, folder / WEIGHTS, "lower the learning rate, or go back a checkpoint")
    folder.mkdir(parents=True, exist_ok=True)
    partial = folder / (WEIGHTS + ".partial")
    save_file(tensors, partial, metadata={"format": "pt"})
    os.replace(partial, folder / WEIGHTS)
    partial = folder / (CONFIG + ".partial")
    partial.write_text(model.config.model_dump_json(indent=2) + "\n", encoding="utf-8")
    os.replace(partial, folder / CONFIG)


def load_model(directory: Path | str) -> HybridModel:
    """Read a checkpoint directory into a model on the CPU, in the type it was saved in.

    Raises:
        CheckpointError: a file is missing, truncated or corrupt, or a tensor is missing, unknown,
            of the wrong shape or type, NaN or infinite. The message names the file and the tensor.
    """
    folder = Path(directory)
    model = HybridModel(load_config(folder))
    path = folder / WEIGHTS
    tensors = _read_tensors(path)
    body = tensors.get("embed.weight")
    if body is not None and body.dtype in _MODEL_TYPES:
        model = model.to(body.dtype)
    expected = model.state_dict()
    _check_names(set(tensors), set(expected), path)
    for name, want in expected.items():
        have = tensors[name]
        if have.shape != want.shape or have.dtype != want.dtype:
            raise CheckpointError(
                f"{path}: tensor {name!r} is {_describe(have)} but {CONFIG} asks for "
                f"{_describe(want)}; {_FIX}"
            )
    _check_finite(tensors, path, _FIX)
    model.load_state_dict(tensors)
    return model


def load_config(directory: Path | str) -> ModelConfig:
    """Read and validate `config.json` of a checkpoint directory.

    Raises:
        CheckpointError: the file is missing, not JSON, or not a model configuration.
    """
    path = Path(directory) / CONFIG
    try:
        return ModelConfig.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; {_FIX}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_FIX}") from error
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(str(part) for part in first["loc"]) or "the whole"
        raise CheckpointError(
            f"{path}: {field} is not valid: {first['msg']} (got {first['input']!r}); {_FIX}"
        ) from error


def _read_tensors(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; {_FIX}") from error
    except (OSError, SafetensorError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} is truncated or corrupt ({error}); {_FIX}") from error


def _check_names(have: set[str], want: set[str], path: Path) -> None:
    for problem, names in (("lacks", want - have), ("holds unknown", have - want)):
        if names:
            shown = ", ".join(repr(name) for name in sorted(names)[:3])
            more = f" and {len(names) - 3} more" if len(names) > 3 else ""
            raise CheckpointError(f"{path} {problem} tensor {shown}{more}; {_FIX}")


def _check_finite(tensors: dict[str, Tensor], path: Path, fix: str) -> None:
    for name, tensor in tensors.items():
        # The sum of a tensor is finite unless an element is not, or it overflows: one cheap pass.
        if torch.isfinite(tensor.float().sum()) or bool(torch.isfinite(tensor).all()):
            continue
        bad = int((~torch.isfinite(tensor)).sum())
        raise CheckpointError(
            f"{path}: tensor {name!r} holds {bad} NaN or infinite of {tensor.numel()} values; {fix}"
        )


def _describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"
