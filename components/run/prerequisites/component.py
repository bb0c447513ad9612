"""Resolve and check the recipe and the machine before anything expensive starts."""

from kfp import dsl

from components.base import component


@component
def prerequisites(
    recipe: str,
    code_digest: str,
    structure: str,
    resolved_recipe: dsl.Output[dsl.Artifact],
    environment: dsl.Output[dsl.Artifact],
    sources: dsl.Output[dsl.Artifact],
) -> None:
    """Publish the resolved recipe, or refuse it."""
    from pathlib import Path

    from longstride.data.fingerprints import publish_fingerprints
    from longstride.recipe.prerequisites import check_and_publish

    resolved = check_and_publish(
        recipe, code_digest, structure, Path(resolved_recipe.path), Path(environment.path)
    )
    sources.metadata.update(publish_fingerprints(resolved, Path(sources.path)))
    resolved_recipe.metadata.update(
        {"name": resolved.name, "version": resolved.version, "digest": resolved.digest()}
    )
