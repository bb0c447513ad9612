"""Text that is already on every machine: the interpreter's library and installed packages."""

from __future__ import annotations

import ast
import importlib.metadata
import importlib.util
import sysconfig
import warnings
from collections.abc import Iterator
from pathlib import Path

from longstride.data.text import Quarantine, normalise, order_key, problem_of, undecodable
from longstride.errors import DataError
from schemas.data import PackageDocumentationSource, StandardLibrarySource
from schemas.rows import Document

# Tests, vendored wheels and generated tables hold little that reads as prose or as good code.
_SKIPPED_FOLDERS = frozenset({
    "test", "tests", "testing", "idle_test", "__pycache__", "site-packages", "dist-packages",
    "encodings", "pydoc_data", "lib2to3", "_bundled", "_vendor", "vendor", "vendored", "generated",
})  # fmt: skip
_SKIPPED_PREFIXES = ("_sysconfigdata", "config-")
_LONGEST_LINE = 400
_SHORTEST_DOCSTRING = 40
_BODIES = ("body", "handlers", "orelse", "finalbody")


def standard_library(
    source: StandardLibrarySource, seed: int, quarantine: Quarantine
) -> Iterator[Document]:
    """Modules of the running interpreter, as code or as the prose of their docstrings."""
    root = Path(sysconfig.get_paths()["stdlib"])
    items: dict[str, Document | Path] = {
        p.relative_to(root).as_posix(): p for p in _walk(root, (".py",))
    }
    if source.part == "docstrings":
        items |= {document.path: document for document in _language_reference(source, root)}
    for name in sorted(items, key=lambda name: order_key(seed, source.name, name)):
        item = items[name]
        if isinstance(item, Document):
            yield item
        else:
            yield from _module_document(source, root, item, source.part, quarantine)


def package_documentation(
    source: PackageDocumentationSource, seed: int, quarantine: Quarantine
) -> Iterator[Document]:
    """Readme files and docstrings of installed packages, without importing them.

    Raises:
        DataError: A package is not installed.
    """
    places = [(package, _package_root(package)) for package in source.packages]
    yield from _readmes(source)
    files = [
        (order_key(seed, package, path.relative_to(root.parent).as_posix()), root.parent, path)
        for package, root in places
        for path in (_walk(root, (".py", ".md", ".rst")) if root.is_dir() else [root])
    ]
    for _, base, path in sorted(files):
        part = "docstrings" if path.suffix == ".py" else "code"
        yield from _module_document(source, base, path, part, quarantine)


def _package_root(package: str) -> Path:
    try:
        spec = importlib.util.find_spec(package)
    except (ValueError, ModuleNotFoundError):
        spec = None
    if spec is None or (spec.origin is None and not spec.submodule_search_locations):
        raise DataError(
            f"package {package!r} of a package_documentation source is not installed; install it "
            "or take it out of the recipe"
        )
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(str(spec.origin))


def _readmes(source: PackageDocumentationSource) -> Iterator[Document]:
    seen: set[str] = set()
    for package in source.packages:
        for distribution in _distributions(package):
            if distribution in seen:
                continue
            seen.add(distribution)
            text = importlib.metadata.metadata(distribution).json.get("description")
            if isinstance(text, str) and text.strip():
                yield _document(source, f"{distribution}/README", text)


def _distributions(package: str) -> list[str]:
    """Distributions that install a package; most have its name, which spares a slow search."""
    try:
        return [importlib.metadata.metadata(package)["Name"]]
    except importlib.metadata.PackageNotFoundError:
        return importlib.metadata.packages_distributions().get(package, [])


def _document(
    source: StandardLibrarySource | PackageDocumentationSource, path: str, text: str
) -> Document:
    return Document(
        id=f"{source.name}/{path}", text=text, domain=source.domain, source=source.name, path=path
    )


def _language_reference(source: StandardLibrarySource, root: Path) -> Iterator[Document]:
    """The topics of `help()`: the language reference as running text, where it is shipped."""
    path = root / "pydoc_data" / "topics.py"
    if not path.is_file():
        return
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict):
            for topic, text in ast.literal_eval(node.value).items():
                yield _document(source, f"pydoc_data/topics.py:{topic}", text)


def _walk(root: Path, suffixes: tuple[str, ...]) -> list[Path]:
    found: list[Path] = []
    for path in sorted(root.iterdir()):
        if path.name.startswith((".", *_SKIPPED_PREFIXES)):
            continue
        if path.is_dir():
            if path.name not in _SKIPPED_FOLDERS:
                found += _walk(path, suffixes)
        elif path.suffix in suffixes and not path.name.startswith("test_"):
            found.append(path)
    return found


def _module_document(
    source: StandardLibrarySource | PackageDocumentationSource,
    root: Path,
    path: Path,
    part: str,
    quarantine: Quarantine,
) -> Iterator[Document]:
    name = path.relative_to(root).as_posix()
    data = path.read_bytes()
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        quarantine(name, undecodable(data, error))
        return
    reason = problem_of(text)
    if reason is None and part == "code" and max(map(len, text.split("\n"))) > _LONGEST_LINE:
        reason = f"a line is longer than {_LONGEST_LINE} characters: generated or embedded data"
    if reason is None and part == "docstrings":
        try:
            text = _docstrings(text)
        except (SyntaxError, RecursionError) as error:
            reason = f"not valid Python: {error}"
    if reason is not None:
        quarantine(name, reason)
    elif text.strip():
        yield _document(source, name, text)


def _docstrings(code: str) -> str:
    """All docstrings of a module worth reading, each once, in order, apart by a blank line."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)
        warnings.simplefilter("ignore", DeprecationWarning)
        tree = ast.parse(code)
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    found: dict[str, None] = {}
    waiting: list[ast.AST] = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, kinds):
            text = normalise(ast.get_docstring(node) or "")
            if len(text) >= _SHORTEST_DOCSTRING and problem_of(text) is None:
                found.setdefault(text)
        # Only statements hold docstrings; expressions are most of a tree and are not entered.
        inner = [n for field in _BODIES for n in getattr(node, field, [])]
        waiting.extend(reversed(inner))
    return "\n\n".join(found)
