"""Train the byte-level BPE tokenizer on the corpus."""

from kfp import dsl

from components.base import component


@component
def train_tokenizer(
    code_digest: str,
    recipe: dsl.Input[dsl.Artifact],
    corpus: dsl.Input[dsl.Dataset],
    tokenizer: dsl.Output[dsl.Artifact],
) -> None:
    """Learn the merges."""
    from pathlib import Path

    from longstride.data.tokenizer_training import train_on_corpus
    from longstride.recipe.resolved import open_recipe

    trained = train_on_corpus(open_recipe(recipe.path), Path(corpus.path), Path(tokenizer.path))
    tokenizer.metadata.update({"vocab_size": trained.vocab_size, "digest": trained.digest})
