"""What the corpus will be read from, as it is now.

A recipe names places, not contents. The fingerprint of those places is an input of the corpus, so
that changed files or another interpreter are changed inputs, to every cache.
"""

from __future__ import annotations

from pathlib import Path

from longstride.data.files.storage import list_files
from longstride.store.artifacts import publish
from longstride.store.files import write_json
from longstride.version import versions
from schemas.base import digest_of
from schemas.data import FileSource
from schemas.recipe import Recipe

FINGERPRINT_FILE = "sources.json"


def publish_fingerprints(recipe: Recipe, out: Path) -> dict[str, str]:
    """Publish a digest of every file source (names, sizes, times or ETags) and of the versions.

    Raises:
        DataError: A location cannot be reached or holds nothing readable.
    """
    found = {"versions": digest_of(versions())}
    for source in recipe.data.sources:
        if isinstance(source, FileSource):
            found[source.name] = digest_of(
                [[path, *map(str, stamp)] for path, *stamp in list_files(source)]
            )
    write_json(out / FINGERPRINT_FILE, found)
    publish(out, "sources", "prerequisites", recipe_digest=recipe.digest())
    return found
