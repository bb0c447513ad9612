"""Components are thin faces: short bodies, one library, short names in the IR."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2] / "components"
FILES = sorted(ROOT.glob("*/*/component.py"))
ROOMS = ("longstride", "schemas", "pathlib")


def function_of(path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return tree, next(node for node in tree.body if isinstance(node, ast.FunctionDef))


def test_there_are_components_in_every_group():
    assert len(FILES) >= 15


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_a_component_is_named_after_its_folder_and_stays_under_forty_lines(path):
    _, function = function_of(path)
    assert function.name == path.parent.name
    assert function.end_lineno - function.body[0].lineno < 40


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_a_component_imports_only_the_library_and_only_in_its_body(path):
    tree, function = function_of(path)
    top = [node.module for node in tree.body if isinstance(node, ast.ImportFrom)]
    assert set(top) <= {"kfp", "components.base"}
    inside = [node.module for node in ast.walk(function) if isinstance(node, ast.ImportFrom)]
    assert all(module.split(".")[0] in ROOMS for module in inside)


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.parent.name)
def test_a_component_has_no_logic_but_loops_over_metrics(path):
    _, function = function_of(path)
    forbidden = (ast.While, ast.Try, ast.With, ast.FunctionDef, ast.Lambda)
    assert not [n for n in ast.walk(function) if isinstance(n, forbidden) and n is not function]
