"""Write chain-of-thought conversations with reflection for supervised fine-tuning."""

from kfp import dsl

from components.base import component


@component
def build_chat_examples(
    code_digest: str, recipe: dsl.Input[dsl.Artifact], examples: dsl.Output[dsl.Dataset]
) -> None:
    """Generate the examples of the recipe's task families."""
    from pathlib import Path

    from longstride.data.sft import build_chat_examples
    from longstride.recipe.resolved import open_recipe

    manifest = build_chat_examples(open_recipe(recipe.path), Path(examples.path))
    examples.metadata.update(manifest.counts)
