"""Tests with what they expect changed, so that they must fail."""

from __future__ import annotations

import ast
from collections.abc import Sequence

from longstride.errors import DataError

_EQUAL_METHODS = frozenset(
    {
        "assertEqual", "assertEquals", "assertListEqual", "assertDictEqual", "assertSetEqual",
        "assertTupleEqual", "assertSequenceEqual", "assertMultiLineEqual", "assertAlmostEqual",
        "assertCountEqual",
    }
)  # fmt: skip


def cannot_pass(source: str, parts: Sequence[str]) -> str:
    """A test file in which one test expects something else.

    Every literal that the test compares for equality is changed, and nothing else: code that reads
    its tests, to return what they expect, then returns the changed value and gives itself away. A
    test without such a literal ends in a failure instead.

    Args:
        source: the file.
        parts: the test's class and name, or its name alone.

    Raises:
        DataError: The file is no Python, or does not hold the test.
    """
    try:
        tree = ast.parse(source)
    except SyntaxError as error:
        raise DataError(f"a test file is not valid Python: {error}") from error
    function = _find(tree, parts)
    before = ast.dump(function)
    _Changer().visit(function)
    if ast.dump(function) == before:
        function.body.extend(ast.parse("raise AssertionError").body)
    return ast.unparse(ast.fix_missing_locations(tree))


def _find(tree: ast.Module, parts: Sequence[str]) -> ast.FunctionDef | ast.AsyncFunctionDef:
    body = tree.body
    for part in parts[:-1]:
        body = next((n.body for n in body if isinstance(n, ast.ClassDef) and n.name == part), [])
    name = parts[-1].split("[")[0]
    for node in body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name == name:
            return node
    raise DataError(f"test {'.'.join(parts)!r} is not in its file")


class _Changer(ast.NodeTransformer):
    """Changes literals on either side of an equality."""

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        """An equality of two: one side is changed."""
        self.generic_visit(node)
        if len(node.ops) == 1 and isinstance(node.ops[0], ast.Eq):
            node.comparators[0] = _changed(node.comparators[0])
            if not _is_literal(node.comparators[0]):
                node.left = _changed(node.left)
        return node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """An assertEqual and its like."""
        self.generic_visit(node)
        if isinstance(node.func, ast.Attribute) and node.func.attr in _EQUAL_METHODS:
            for place in (1, 0):
                if place < len(node.args) and _is_literal(node.args[place]):
                    node.args[place] = _changed(node.args[place])
                    break
        return node


def _is_literal(node: ast.expr) -> bool:
    try:
        ast.literal_eval(node)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return False
    return True


def _changed(node: ast.expr) -> ast.expr:
    """Another literal of the same type; what is no literal stays."""
    if not _is_literal(node):
        return node
    value = ast.literal_eval(node)
    match value:
        case bool():
            other: object = not value
        case int() | float() | complex():
            other = value + 1
        case str():
            other = value + "?"
        case bytes():
            other = value + b"?"
        case list():
            other = [*value, 0]
        case tuple():
            other = (*value, 0)
        case set():
            other = value | {"?"}
        case dict():
            other = {**value, "?": 0}
        case _:
            other = 0
    return ast.parse(repr(other), mode="eval").body
