"""Render conversations and pack them, with loss on the answer side only."""

from kfp import dsl

from components.base import component


@component
def pack_chat(
    code_digest: str,
    recipe: dsl.Input[dsl.Artifact],
    examples: dsl.Input[dsl.Dataset],
    tokenizer: dsl.Input[dsl.Artifact],
    packed: dsl.Output[dsl.Dataset],
) -> None:
    """Pack the SFT rows."""
    from pathlib import Path

    from longstride.data.stage_rows import pack_examples
    from longstride.recipe.resolved import open_recipe

    manifest = pack_examples(
        open_recipe(recipe.path), Path(examples.path), Path(tokenizer.path), Path(packed.path)
    )
    packed.metadata.update(manifest.counts)
