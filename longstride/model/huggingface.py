"""Reading and writing checkpoint folders in the Hugging Face layout.

MiniMax-Text-01 and M1 (published and transformers spelling), llama, mistral, qwen2 and qwen3.
Weights stream tensor by tensor, so that reading needs little more memory than the model itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from longstride.errors import CheckpointError
from longstride.model.architectures import config_from, settings_of
from longstride.model.hybrid import HybridModel
from longstride.model.names import Experts, fill, to_transformers
from schemas.model import ModelConfig

CONFIG = "config.json"
SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
_FIX = "restore the folder from its source"


def read_config(directory: Path | str) -> ModelConfig:
    """Return our configuration of a Hugging Face checkpoint folder.

    Raises:
        CheckpointError: `config.json` is missing, not JSON, or describes another kind of model.
    """
    path = Path(directory) / CONFIG
    settings = _read_json(path)
    try:
        return config_from(settings)
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from error


def load_huggingface(directory: Path | str, dtype: torch.dtype = torch.float32) -> HybridModel:
    """Build a model from a Hugging Face checkpoint folder, sharded or not.

    Tied embeddings are untied: the head gets its own copy. Head, router and decay are fp32 whatever
    `dtype` is.

    Raises:
        CheckpointError: a file or tensor is missing, damaged or of the wrong shape, or the model is
            of a kind that is not supported.
    """
    folder = Path(directory)
    settings = _read_json(folder / CONFIG)
    model = HybridModel(read_config(folder)).to(dtype)
    with ExitStack() as files:
        read = _open_weights(folder, files)
        fused = any(name.endswith("mlp.experts.gate_up_proj") for name in read)
        experts: Experts = "fused" if fused else "split"
        for name, view in to_transformers(model, experts).items():
            if (
                name not in read
                and name == "lm_head.weight"
                and settings.get("tie_word_embeddings")
            ):
                fill(view, read["model.embed_tokens.weight"](), name)
                continue
            if name not in read:
                raise CheckpointError(f"{folder} has no tensor {name!r}; {_FIX}")
            fill(view, read[name](), name)
    return model


def _open_weights(folder: Path, files: ExitStack) -> dict[str, Callable[[], Tensor]]:
    """Return, by tensor name, functions that read one tensor."""
    if (folder / INDEX).is_file():
        shards = sorted(set(_read_json(folder / INDEX).get("weight_map", {}).values()))
    else:
        shards = [SINGLE]
    readers: dict[str, Callable[[], Tensor]] = {}
    for shard in shards:
        path = folder / shard
        try:
            opened = files.enter_context(safe_open(path, framework="pt"))
        except FileNotFoundError as error:
            raise CheckpointError(f"{path} does not exist; {_FIX}") from error
        except (OSError, SafetensorError) as error:
            raise CheckpointError(f"{path} is truncated or corrupt ({error}); {_FIX}") from error
        for name in opened.keys():  # noqa: SIM118 - not a mapping
            readers[name] = _reader(opened, name)
    return readers


def _reader(opened: Any, name: str) -> Callable[[], Tensor]:
    return lambda: opened.get_tensor(name)


def save_huggingface(
    model: HybridModel,
    directory: Path | str,
    *,
    max_positions: int = 1 << 20,
    eos_token_id: int | None = None,
    shard_bytes: int = 5_000_000_000,
) -> None:
    """Write a folder that `from_pretrained`, vLLM and `load_huggingface` can read.

    Args:
        model: the policy.
        directory: created when missing; `config.json` is written last.
        max_positions: longest sequence that readers may allow.
        eos_token_id: token at which a server should stop by itself; None for none.
        shard_bytes: largest weights file; a larger model gets several and an index.

    Raises:
        CheckpointError: the architecture has no equivalent in the layout.
    """
    folder = Path(directory)
    settings = settings_of(model.config) | {
        "max_position_embeddings": max_positions,
        "bos_token_id": None,
        "eos_token_id": eos_token_id,
        "pad_token_id": None,
        "dtype": str(model.embed.weight.dtype).removeprefix("torch."),
    }
    folder.mkdir(parents=True, exist_ok=True)
    shards = list(_shards(to_transformers(model, "split"), shard_bytes))
    where: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        name = (
            SINGLE if len(shards) == 1 else f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        )
        _write_shard(shard, folder / name)
        where |= dict.fromkeys(shard, name)
    (folder / INDEX).unlink(missing_ok=True)
    if len(shards) > 1:
        total = sum(tensor.numel() * tensor.element_size() for s in shards for tensor in s.values())
        _write_json({"metadata": {"total_size": total}, "weight_map": where}, folder / INDEX)
    _write_json(settings, folder / CONFIG)


def _shards(tensors: dict[str, Tensor], limit: int) -> Iterator[dict[str, Tensor]]:
    shard: dict[str, Tensor] = {}
    size = 0
    for name, tensor in tensors.items():
        count = tensor.numel() * tensor.element_size()
        if shard and size + count > limit:
            yield shard
            shard, size = {}, 0
        shard[name] = tensor
        size += count
    yield shard


def _write_shard(shard: dict[str, Tensor], path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    # Views of one fused parameter share its storage, which safetensors refuses: copy them.
    save_file(
        {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in shard.items()},
        partial,
        metadata={"format": "pt"},
    )
    os.replace(partial, path)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise CheckpointError(f"{path} does not exist; {_FIX}") from error
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); {_FIX}") from error
    if not isinstance(values, dict):
        raise CheckpointError(f"{path} holds {type(values).__name__}, not a mapping; {_FIX}")
    return values


def _write_json(values: dict[str, Any], path: Path) -> None:
    partial = path.with_name(path.name + ".partial")
    partial.write_text(json.dumps(values, indent=2) + "\n", encoding="utf-8")
    os.replace(partial, path)
