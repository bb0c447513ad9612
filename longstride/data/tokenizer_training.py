"""Train the tokenizer on the corpus of the run."""

from __future__ import annotations

from pathlib import Path

from longstride.store.artifacts import digest_of_artifact, open_artifact, publish
from longstride.store.files import read_jsonl
from longstride.tokens.tokenizer import Tokenizer
from schemas.recipe import Recipe
from schemas.rows import Document


def train_on_corpus(recipe: Recipe, corpus: Path, out: Path) -> Tokenizer:
    """Learn the merges from the corpus and publish the tokenizer.

    Raises:
        DataError: The corpus is damaged.
    """
    manifest = open_artifact(corpus, "documents")
    documents = read_jsonl(corpus / "documents.jsonl", Document)
    tokenizer = Tokenizer.train((document.text for document in documents), recipe.tokenizer, out)
    publish(
        out,
        "tokenizer",
        "tokenizer",
        parents={"corpus": digest_of_artifact(manifest)},
        recipe_digest=recipe.digest(),
        counts={"vocabulary": tokenizer.vocab_size},
    )
    return tokenizer
