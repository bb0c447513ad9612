import json
from pathlib import Path

import pytest

from longstride.errors import RecipeError, UsageError
from longstride.recipe import prerequisites
from longstride.recipe.loading import load_recipe
from longstride.recipe.resolved import open_recipe
from schemas.base import canonical_json

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


@pytest.fixture
def text():
    return canonical_json(load_recipe("tiny", (), [RECIPES]).compact())


def test_the_resolved_recipe_and_the_environment_are_published(text, tmp_path):
    recipe = prerequisites.check_and_publish(
        text, "sha256:1", "extension=4;rounds=6", tmp_path / "recipe", tmp_path / "environment"
    )
    assert open_recipe(tmp_path / "recipe") == recipe
    environment = json.loads((tmp_path / "environment" / "environment.json").read_text())
    assert environment["code_digest"] == "sha256:1"
    assert {"python", "kfp", "torch"} <= set(environment["versions"])


def test_a_recipe_of_another_structure_than_the_compiled_dag_is_refused(text, tmp_path):
    with pytest.raises(RecipeError, match=r"compiled for extension=4;rounds=2.*rounds=6"):
        prerequisites.check_and_publish(
            text, "", "extension=4;rounds=2", tmp_path / "r", tmp_path / "e"
        )
    assert not (tmp_path / "r").exists()


def test_a_disk_that_is_too_full_is_refused(text, tmp_path, monkeypatch):
    monkeypatch.setattr(prerequisites, "MINIMUM_FREE_BYTES", 2**60)
    with pytest.raises(UsageError, match="MiB are free"):
        prerequisites.check_and_publish(
            text, "", "extension=4;rounds=6", tmp_path / "r", tmp_path / "e"
        )
