"""What all runs share: tokenizer, SFT data and the SFT checkpoint."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.figure2.problems import Chances, examples
from longstride.data.sft import EXAMPLES, pack_chat
from longstride.data.traces import MARKERS
from longstride.store.artifacts import publish
from longstride.store.files import write_json, write_jsonl
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.language import initialise, train_stage
from schemas.base import digest_of
from schemas.recipe import Recipe


def prepare(recipe: Recipe, folder: Path) -> None:
    """Train the tokenizer and the SFT checkpoint into `folder`."""
    chances = Chances(recheck=recipe.sft.reflection_share)
    rows = list(examples(recipe.sft.examples, recipe.seed, chances))
    write_jsonl(folder / "chat" / EXAMPLES, rows)
    publish(folder / "chat", "chat", "sft-data", recipe_digest=recipe.digest())
    texts = [message.content for row in rows for message in row.messages]
    # The markers often enough that each is one token, as in the vocabulary of a large model.
    words = [f"1 {marker} 1" for marker in MARKERS] * len(rows)
    tokenizer = Tokenizer.train([*words, *texts], recipe.tokenizer, folder / "tokenizer")
    pack_chat(folder / "chat", tokenizer, recipe.sft.window, folder / "packed", recipe.seed)
    initialise(recipe, folder / "initial")
    train_stage(
        recipe, "sft", folder / "packed", folder / "initial", folder / "sft", folder / "metrics"
    )


def prepare_once(recipe: Recipe, folder: Path) -> None:
    """The same, unless `folder` holds what this recipe's model, tokenizer and SFT give already."""
    parts = [
        getattr(recipe, name).model_dump(mode="json") for name in ("model", "tokenizer", "sft")
    ]
    key = digest_of([recipe.seed, *parts])
    place = folder / "prepared.json"
    if place.is_file() and json.loads(place.read_text(encoding="utf-8")) == {"key": key}:
        print("the SFT checkpoint is there already")
        return
    place.unlink(missing_ok=True)
    prepare(recipe, folder)
    write_json(place, {"key": key})
