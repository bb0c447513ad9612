"""Pack documents into rows of exactly one window for pretraining or context extension."""

from kfp import dsl

from components.base import component


@component
def pack_documents(
    code_digest: str,
    stage: str,
    recipe: dsl.Input[dsl.Artifact],
    corpus: dsl.Input[dsl.Dataset],
    tokenizer: dsl.Input[dsl.Artifact],
    packed: dsl.Output[dsl.Dataset],
) -> None:
    """Pack for one stage."""
    from pathlib import Path

    from longstride.data.stage_rows import pack_for_stage
    from longstride.recipe.resolved import open_recipe

    manifest = pack_for_stage(
        open_recipe(recipe.path),
        stage,
        Path(corpus.path),
        Path(tokenizer.path),
        Path(packed.path),
    )
    packed.metadata.update(manifest.counts)
