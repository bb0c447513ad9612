from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longstride.errors import RecipeError
from longstride.recipe.loading import load_recipe
from longstride.recipe.resolved import open_recipe, parse_compact, publish_recipe
from schemas.base import canonical_json

RECIPES = Path(__file__).parents[2] / "pipelines" / "recipes"


def load(*overrides, source="tiny"):
    return load_recipe(source, overrides, [RECIPES])


def written(tmp_path, text, name="mine.yaml"):
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return path


def test_a_recipe_extends_another_and_changes_only_what_it_names(tmp_path):
    mine = load(source=written(tmp_path, "extends: tiny\nname: mine\nrl: {rounds: 2}\n"))
    tiny = load()
    assert (mine.name, mine.rl.rounds) == ("mine", 2)
    assert mine.rl.group_size == tiny.rl.group_size
    assert mine.data == tiny.data


def test_dotted_overrides_reach_into_mappings_and_lists():
    recipe = load("rl.rounds=3", "extension.0.tokens=512", "rl.algorithm.is_weight_cap=2.5")
    assert recipe.rl.rounds == 3
    assert recipe.extension[0].tokens == 512
    assert recipe.rl.algorithm.is_weight_cap == 2.5


def test_another_kind_of_algorithm_keeps_nothing_of_the_one_below(tmp_path):
    text = "extends: tiny\nname: mine\nrl: {algorithm: {kind: dapo}}\n"
    assert load(source=written(tmp_path, text)).rl.algorithm.kind == "dapo"


def test_scientific_notation_without_a_dot_is_a_number():
    assert load("rl.learning_rate=1e-3").rl.learning_rate == 1e-3


def test_recipes_that_extend_each_other_are_refused(tmp_path):
    written(tmp_path, "extends: b\n", "a.yaml")
    written(tmp_path, "extends: a\n", "b.yaml")
    with pytest.raises(RecipeError, match=r"circle: a\.yaml -> b\.yaml -> a\.yaml"):
        load(source=tmp_path / "a.yaml")


def test_a_key_written_twice_is_refused_with_its_line(tmp_path):
    with pytest.raises(RecipeError, match="line 3: key 'seed' is written twice"):
        load(source=written(tmp_path, "extends: tiny\nseed: 1\nseed: 2\n"))


def test_an_unknown_recipe_names_those_there_are():
    with pytest.raises(RecipeError, match=r"no recipe 'tinny'.*tiny"):
        load(source="tinny")


def test_a_file_that_is_not_yaml_or_not_utf8_is_refused_by_name(tmp_path):
    with pytest.raises(RecipeError, match=r"mine\.yaml is not valid YAML"):
        load(source=written(tmp_path, "a: [1,\n"))
    broken = tmp_path / "broken.yaml"
    broken.write_bytes(b"name: \xff\xfe\n")
    with pytest.raises(ValueError, match=r"broken\.yaml is not valid UTF-8"):
        load(source=broken)


# Each kind of mistake: the override, and what the message must name: field, value, fix.
MISTAKES = {
    "unknown field": ("rl.groups_size=4", ["rl.groups_size", "value 4", "'group_size'"]),
    "unknown field in a union": (
        "rl.algorithm.is_wieght_cap=5", ["rl.algorithm", "is_wieght_cap", "'is_weight_cap'"],
    ),
    "out of bounds": ("rl.group_size=1", ["rl.group_size", "got 1", "greater than or equal to 2"]),
    "a cap below one": ("rl.algorithm.is_weight_cap=0.2", ["is_weight_cap", "0.2", "equal to 1"]),
    "wrong type": ("seed=seven", ["seed", "'seven'", "integer"]),
    "unknown kind": ("rl.algorithm={kind: ppo2}", ["rl.algorithm", "ppo2", "cispo"]),
    "not a distribution": ("data.mixture.web=0.9", ["data", "sum to 1", "0.9", "rescale"]),
    "a domain without a source": (
        "data.sources=[{kind: reasoning_gym, name: r, domain: reasoning, documents: 5}]",
        ["data", "no source", "'code'", "add a source"],
    ),
    "shrinking window": ("extension.1.window=16", ["extension stage 2", "window=16", "only grow"]),
    "shrinking rope base": ("extension.1.rope_base=5", ["rope_base=5", "only grow"]),
    "ladder beyond the context": ("ladder.scale=1000", ["80000 tokens", "512", "ladder.scale"]),
    "unsorted ladder": ("ladder.rungs=[48, 40]", ["ladder", "[48, 40]", "ascending", "sort"]),
    "vocabulary too small": ("model.vocab_size=400", ["512", "400", "raise model.vocab_size"]),
    "too many updates": ("rl.updates_per_batch=9999", ["rl", "9999", "lower updates_per_batch"]),
    "rate that grows": ("pretrain.final_learning_rate=1", ["pretrain", "=1", "only decay"]),
    "gpu without retry": (
        "resources.training={gpus: 8}", ["resources.training", "gpus=8", "set retries to 1"],
    ),
    "heads that do not divide": ("model.num_kv_heads=3", ["model", "num_kv_heads=3", "divisors"]),
    "not finite": ("rl.learning_rate=.nan", ["rl.learning_rate", "nan"]),
    "empty list": ("tasks=[]", ["tasks", "at least 1"]),
    "index out of range": ("extension.9.tokens=5", ["'9'", "below 4"]),
    "not an assignment": ("rl.rounds", ["'rl.rounds'", "field.subfield=value"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", MISTAKES)
def test_a_mistake_is_named_with_its_field_its_value_and_the_fix(kind):
    override, expected = MISTAKES[kind]
    with pytest.raises(RecipeError) as caught:
        load(override)
    message = str(caught.value)
    assert [part for part in expected if part not in message] == [], message


def test_every_problem_of_a_recipe_is_listed_at_once():
    with pytest.raises(RecipeError, match="has 2 problems"):
        load("rl.group_size=1", "seed=-4")


def test_a_required_section_that_is_missing_is_named(tmp_path):
    with pytest.raises(RecipeError, match="data: this field is required"):
        load(source=written(tmp_path, "name: mine\ntasks: [{name: a, levels: [{parameters: {}}]}]\n"
                                      "extension: [{window: 90, rope_base: 1e5, tokens: 1, "
                                      "learning_rate: 1}]\n"))  # fmt: skip


@given(seed=st.integers(0, 2**31 - 1), rounds=st.integers(1, 64), cap=st.floats(1, 100))
def test_the_compact_form_restores_the_recipe_and_its_digest(seed, rounds, cap):
    recipe = load(f"seed={seed}", f"rl.rounds={rounds}", f"rl.algorithm.is_weight_cap={cap!r}")
    restored = parse_compact(canonical_json(recipe.compact()))
    assert restored == recipe
    assert restored.digest() == recipe.digest()


def test_the_digest_changes_with_any_value():
    assert load().digest() == load().digest()
    assert load().digest() != load("benchmark.margin=0.02").digest()


def test_a_resolved_recipe_artifact_is_verified_when_read(tmp_path):
    publish_recipe(load(), tmp_path)
    assert open_recipe(tmp_path) == load()
    (tmp_path / "recipe.json").write_text("{}")
    with pytest.raises(ValueError, match=r"recipe\.json has 2 bytes"):
        open_recipe(tmp_path)


def test_a_recipe_parameter_that_is_not_json_is_refused():
    with pytest.raises(RecipeError, match="not JSON"):
        parse_compact("{")
    with pytest.raises(RecipeError, match="list, not a mapping"):
        parse_compact("[]")


def test_an_override_is_kept_whether_it_comes_before_or_after_the_kind_of_its_union():
    given_before = load("engine.checkpoint_every_steps=3", "engine.kind=deepspeed")
    assert given_before == load("engine.kind=deepspeed", "engine.checkpoint_every_steps=3")
    assert given_before.engine.checkpoint_every_steps == 3
    assert load("engine.kind=deepspeed", "engine.kind=torch").engine.kind == "torch"
