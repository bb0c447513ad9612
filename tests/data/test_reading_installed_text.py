import ast
import itertools

import pytest

from longstride.data.readers import read_documents
from longstride.errors import DataError
from schemas.data import PackageDocumentationSource, StandardLibrarySource


def library(part, seed=0):
    source = StandardLibrarySource(kind="standard_library", name="lib", domain="code", part=part)
    return read_documents(source, seed=seed, tasks=[], quarantine=pytest.fail)


def packages(*names):
    source = PackageDocumentationSource(
        kind="package_documentation", name="pkg", domain="stem", packages=list(names)
    )
    return read_documents(source, seed=0, tasks=[], quarantine=lambda *_: None)


def test_code_of_the_standard_library_is_python_and_holds_no_tests():
    rows = list(itertools.islice(library("code"), 40))
    assert all(ast.parse(row.text).body or row.text for row in rows)
    assert not any("test" in row.path.split("/")[:-1] for row in rows)
    assert len({row.id for row in rows}) == 40


def test_docstrings_are_prose_without_the_code_around_them():
    source = library("docstrings")
    row = next(row for row in source if row.path == "statistics.py")
    assert "arithmetic mean" in row.text
    assert "def mean(" not in row.text


def test_the_seed_orders_the_modules():
    first = [row.path for row in itertools.islice(library("code", 1), 10)]
    assert first == [row.path for row in itertools.islice(library("code", 1), 10)]
    assert first != [row.path for row in itertools.islice(library("code", 2), 10)]


def test_package_documentation_holds_the_readme_and_docstrings():
    rows = {row.path: row.text for row in packages("pydantic")}
    assert "Pydantic" in rows["pydantic/README"]
    assert "pydantic/fields.py" in rows


def test_a_package_that_is_not_installed_is_named():
    with pytest.raises(DataError, match="'no_such_package' of a package_documentation source"):
        list(packages("no_such_package"))
