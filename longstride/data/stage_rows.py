"""Packed rows for one stage of a recipe."""

from __future__ import annotations

from pathlib import Path

from longstride.data.packing import pack_documents
from longstride.data.sft import pack_chat
from longstride.recipe.stages import extension_of
from longstride.store.artifacts import open_artifact
from longstride.store.seeds import stream_seed
from longstride.tokens.tokenizer import Tokenizer
from schemas.artifacts import ArtifactManifest
from schemas.recipe import Recipe
from schemas.stages import ExtensionStage


def pack_for_stage(
    recipe: Recipe, stage: str, corpus: Path, tokenizer: Path, out: Path
) -> ArtifactManifest:
    """Pack documents for `pretrain` or `extend-<n>`.

    Raises:
        DataError: The corpus is damaged or too small for the window.
        RecipeError: The recipe has no such stage.
    """
    open_artifact(corpus, "documents")
    settings = recipe.pretrain if stage == "pretrain" else extension_of(recipe, stage)
    extension = settings if isinstance(settings, ExtensionStage) else None
    return pack_documents(
        corpus,
        Tokenizer.load(tokenizer),
        settings.window,
        settings.tokens,
        stream_seed(recipe.seed, stage, "packing"),
        out,
        stage,
        recipe.digest(),
        long_share=extension.long_share if extension else 0.0,
        mixture=extension.mixture if extension else None,
        probes=extension.probes if extension else None,
    )


def pack_examples(recipe: Recipe, examples: Path, tokenizer: Path, out: Path) -> ArtifactManifest:
    """Pack conversations for SFT.

    Raises:
        DataError: The examples are damaged, or all are too long for the window.
    """
    open_artifact(examples, "chat")
    return pack_chat(
        examples,
        Tokenizer.load(tokenizer),
        recipe.sft.window,
        out,
        stream_seed(recipe.seed, "sft", "packing"),
        "sft",
        recipe.digest(),
    )
