"""The tokenizer of a run: trained on its corpus, or taken over from where the run starts."""

from __future__ import annotations

from pathlib import Path

from longstride.errors import RecipeError
from longstride.recipe.starting import open_starting_point
from longstride.store.artifacts import digest_of_artifact, open_artifact, publish
from longstride.store.files import read_jsonl
from longstride.tokens.tokenizer import Tokenizer
from schemas.recipe import Recipe
from schemas.rows import Document


def train_on_corpus(recipe: Recipe, corpus: Path, out: Path) -> Tokenizer:
    """Learn the merges from the corpus, or adopt the starting point's, and publish the tokenizer.

    Raises:
        DataError: The corpus or the starting point's tokenizer is damaged.
        RecipeError: The starting point is not what the recipe says, or the tokenizer does not fit
            the model.
    """
    manifest = open_artifact(corpus, "documents")
    documents = read_jsonl(corpus / "documents.jsonl", Document)
    if recipe.start_from is None:
        texts = (document.text for document in documents)
        tokenizer = Tokenizer.train(texts, recipe.tokenizer, out)
    else:
        tokenizer = Tokenizer.adopt(open_starting_point(recipe.start_from), out)
    if tokenizer.vocab_size > recipe.model.vocab_size:
        raise RecipeError(
            f"model.vocab_size={recipe.model.vocab_size} is less than the {tokenizer.vocab_size} "
            "entries of the tokenizer with its special tokens; raise it"
        )
    publish(
        out,
        "tokenizer",
        "tokenizer",
        parents={"corpus": digest_of_artifact(manifest)},
        recipe_digest=recipe.digest(),
        counts={"vocabulary": tokenizer.vocab_size},
    )
    return tokenizer
