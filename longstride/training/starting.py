"""The weights of a run that starts from a checkpoint of somebody else's."""

from __future__ import annotations

import torch

from longstride.errors import RecipeError
from longstride.model.huggingface import load_huggingface, read_config
from longstride.model.hybrid import HybridModel
from longstride.recipe.starting import open_starting_point
from schemas.model import ModelConfig
from schemas.stages import StartingPoint

_FREE = ("vocab_size", "init_std", "lightning_chunk", "router_aux_loss_coef")
"""What the recipe may choose: nothing that the weights were trained with depends on it."""


def load_starting_point(config: ModelConfig, start: StartingPoint) -> HybridModel:
    """Read a Hugging Face folder into the recipe's architecture.

    Raises:
        RecipeError: The recipe's architecture is another one; names every field that differs.
        CheckpointError: The folder's weights are damaged or of an unsupported kind.
    """
    folder = open_starting_point(start)
    found = read_config(folder)
    theirs, ours = found.model_dump(mode="json"), config.model_dump(mode="json")
    wrong = [name for name in theirs if name not in _FREE and theirs[name] != ours[name]]
    if wrong:
        needed = ", ".join(f"{name}: {theirs[name]}" for name in wrong)
        raise RecipeError(
            f"the recipe's model is not that of start_from.path; set under `model:` {needed}"
        )
    if found.vocab_size > config.vocab_size:
        raise RecipeError(
            f"model.vocab_size={config.vocab_size} is less than the {found.vocab_size} rows of the "
            "starting point; raise it to at least that, plus eight for special tokens"
        )
    loaded = load_huggingface(folder)
    model = HybridModel(config)
    with torch.no_grad():
        for (name, new), old in zip(model.named_parameters(), loaded.parameters(), strict=True):
            if name in ("embed.weight", "head.weight"):
                # A new token starts as the average one: neither likely nor impossible.
                new[:] = old.mean(0)
                new[: old.shape[0]] = old
            else:
                new.copy_(old)
    return model
