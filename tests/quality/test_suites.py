"""Suites as data: strict, complete, and with thresholds that a recipe may set."""

import subprocess
import sys

import pytest
from pydantic import ValidationError
from quality_parts import make_recipe

from longstride.errors import GateCouldNotRun, RecipeError
from longstride.quality.gate import describe_checks
from longstride.quality.suites import EDGES, CheckSpec, check_thresholds, load_suite, resolve

SPEC = {
    "name": "small",
    "description": "a value that must stay small",
    "level": "summary",
    "column": "x",
    "expectation": "expect_column_values_to_be_between",
    "arguments": {"max_value": "{threshold}"},
    "threshold": 5,
    "severity": "block",
    "origin": "here",
}


def with_thresholds(**thresholds):
    named = {key.replace("__", "/"): value for key, value in thresholds.items()}
    return make_recipe(quality={"thresholds": named})


def find(suite, name):
    return next(spec for spec in suite.checks if spec.name == name)


@pytest.mark.parametrize("edge", EDGES)
def test_every_edge_has_at_least_eight_checks_some_of_which_block(edge):
    suite = load_suite(edge)
    assert len(suite.checks) >= 8
    assert any(check.severity == "block" for check in suite.checks)
    assert all(check.origin and check.description.endswith(".") for check in suite.checks)


@pytest.mark.parametrize("edge", EDGES)
def test_no_placeholder_is_left_in_a_resolved_suite(edge):
    resolved = resolve(load_suite(edge), make_recipe())
    told = "".join(str((check.arguments, check.mostly)) for check in resolved.checks)
    assert "threshold" not in told


def test_a_recipe_overrides_a_threshold_and_the_digest_shows_it():
    plain = resolve(load_suite("E1"), make_recipe())
    changed = resolve(load_suite("E1"), with_thresholds(E1__emails=0.2))
    assert find(plain, "emails").mostly == 0.95
    assert find(changed, "emails").mostly == 0.8
    assert plain.digest != changed.digest


def test_a_threshold_can_come_from_a_recipe_field_and_still_be_overridden():
    recipe = make_recipe()
    recipe.rl.minimum_probability_correlation = 0.9
    spec = find(resolve(load_suite("E5"), recipe), "probability_correlation")
    assert spec.arguments == {"min_value": 0.9}
    recipe.quality.thresholds = {"E5/probability_correlation": 0.7}
    spec = find(resolve(load_suite("E5"), recipe), "probability_correlation")
    assert spec.arguments == {"min_value": 0.7}


def test_signed_placeholders_are_filled():
    spec = find(resolve(load_suite("E8"), make_recipe()), "no_regression")
    assert spec.arguments == {"min_value": -0.01}


@pytest.mark.parametrize(
    ("key", "told"),
    [
        ("E1__duplicate", r"no check 'E1/duplicate' .*E1/duplicates"),
        ("E9__x", "no check 'E9/x'"),
        ("E6__x", "no check 'E6/x'"),
        ("E1__ids_unique", "E1/ids_unique is exact and has no threshold"),
    ],
)
def test_an_override_without_effect_is_refused_with_what_exists(key, told):
    with pytest.raises(RecipeError, match=told):
        check_thresholds(with_thresholds(**{key: 0.5}))


def test_a_share_of_rows_outside_zero_to_one_is_refused():
    with pytest.raises(RecipeError, match=r"must be in \[0, 1\], got 3"):
        resolve(load_suite("E1"), with_thresholds(E1__duplicates=3.0))


@pytest.mark.parametrize(
    "changes",
    [
        {"surplus": 1},
        {"severity": "fatal"},
        {"threshold": None},
        {"arguments": {"max_value": 5}},
        {"threshold_field": "rl.rounds"},
        {"expectation": "import os"},
        {"name": "Not A Name"},
    ],
)
def test_a_malformed_check_is_refused(changes):
    with pytest.raises(ValidationError):
        CheckSpec.model_validate({**SPEC, **changes})


def test_a_missing_suite_could_not_run():
    with pytest.raises(GateCouldNotRun, match=r"E6\.yaml"):
        load_suite("E6")


def test_describing_the_checks_covers_all_edges_and_every_key_can_be_checked():
    known = describe_checks()
    assert {check.key.split("/")[0] for check in known} == set(EDGES)
    assert len({check.key for check in known}) == len(known)
    settable = {check.key: 0.5 for check in known if check.threshold is not None}
    check_thresholds(make_recipe(quality={"thresholds": settable}))


def test_the_gate_imports_nothing_heavy():
    code = (
        "import sys, longstride.quality.gate as g; g.describe_checks();"
        "heavy = {'great_expectations', 'pandas', 'torch', 'numpy', 'tokenizers', 'safetensors',"
        " 'reasoning_gym'} & set(sys.modules); sys.exit(str(heavy) if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
