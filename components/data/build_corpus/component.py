"""Read, clean, de-duplicate and mix the pretraining corpus."""

from kfp import dsl

from components.base import component


@component
def build_corpus(
    code_digest: str,
    recipe: dsl.Input[dsl.Artifact],
    sources: dsl.Input[dsl.Artifact],
    corpus: dsl.Output[dsl.Dataset],
) -> None:
    """Build the corpus to the recipe's mixture; `sources` says what the places held."""
    from pathlib import Path

    from longstride.data.corpus import build_corpus
    from longstride.recipe.resolved import open_recipe

    manifest = build_corpus(open_recipe(recipe.path), Path(corpus.path))
    corpus.metadata.update(manifest.counts)
