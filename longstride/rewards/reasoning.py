"""Scores of reasoning-gym's families, two of them by scorers of our own, and which are refused."""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import re
import sys
import types
import warnings
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any

FAILURES: tuple[type[Exception], ...] = (
    ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError, SyntaxError,
    TypeError, ValueError,
)  # fmt: skip
"""What its scorers raise on input that they do not expect (ArithmeticError holds
ZeroDivisionError, OverflowError and decimal.InvalidOperation)."""

REFUSED_FAMILIES: dict[str, str] = {
    "graph_color": "it stores no reference answer",
    "boxnet": "it stores no reference answer",
    "propositional_logic": "it stores no reference answer",
    "rush_hour": "it stores no reference answer",
    "rubiks_cube": "it stores no reference answer",
    "list_functions": "its problems do not repeat under the same seed",
}
"""Families that cannot be verified, and why."""

_REAL_PARTS = frozenset({"data", "coaching"})


def version() -> str:
    """The package that scores, with its version."""
    return f"reasoning-gym {importlib.metadata.version('reasoning-gym')}"


def score(family: str, entry: dict[str, Any], answer: str) -> float:
    """Score from 0 to 1 of an answer to a generated problem.

    Raises:
        ValueError: The family is one of `REFUSED_FAMILIES`, or does not exist.
        Exception: Whatever the family's scorer raises, mostly one of `FAILURES`.
    """
    if family in REFUSED_FAMILIES:
        raise ValueError(f"family {family!r} cannot be scored: {REFUSED_FAMILIES[family]}")
    own = OWN_SCORERS.get(family)
    if own is not None:
        return own(entry, answer)
    return float(_scorer(family).score_answer(answer=answer, entry=entry))


def load() -> None:
    """Import the package with all its families, which takes seconds."""
    # Some of its dependencies compile with warnings; they are not ours to show.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import reasoning_gym  # noqa: F401


@lru_cache(maxsize=1024)
def load_family(family: str) -> None:
    """Import one family alone, a tenth of the package's start; for processes that score few.

    The package imports all of its hundred families, and their dependencies, from its `__init__`
    files. Here these stay unread: empty modules with the same search path stand for them. Where a
    family needs more than its own file, the whole package is imported after all.
    """
    if family in OWN_SCORERS or family in REFUSED_FAMILIES:
        return
    package = _package_directory()
    module = _module_of(family, package)
    if module is None:
        load()
        return
    if "reasoning_gym" not in sys.modules:
        _stand_in("reasoning_gym", package)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            importlib.import_module(module)
    except ImportError:
        for name in [n for n in sys.modules if n.split(".")[0] == "reasoning_gym"]:
            del sys.modules[name]
        _scorer.cache_clear()
        load()


@lru_cache(maxsize=1)
def _package_directory() -> Path:
    spec = importlib.util.find_spec("reasoning_gym")
    if spec is None or spec.origin is None:
        raise ModuleNotFoundError("No module named 'reasoning_gym'; install longstride[data]")
    return Path(spec.origin).parent


def _stand_in(name: str, directory: Path) -> None:
    module = types.ModuleType(name)
    module.__path__ = [str(directory)]
    sys.modules[name] = module
    if "." not in name:
        for part in directory.iterdir():
            if (part / "__init__.py").exists() and part.name not in _REAL_PARTS:
                _stand_in(f"{name}.{part.name}", part)


def _module_of(family: str, package: Path) -> str | None:
    named = re.compile(
        rf"""(DATASET_NAME\s*=\s*|register_dataset\(\s*)["']{re.escape(family)}["']"""
    )
    for path in sorted(package.rglob(f"*{family}*.py")) or sorted(package.rglob("*.py")):
        if named.search(path.read_text(encoding="utf-8")):
            return ".".join(("reasoning_gym", *path.relative_to(package).with_suffix("").parts))
    return None


@lru_cache(maxsize=256)
def _scorer(family: str) -> Any:
    if "reasoning_gym" not in sys.modules:
        load()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from reasoning_gym.factory import create_dataset

    return create_dataset(family, seed=0, size=1)


def _game_of_life_halting(entry: dict[str, Any], answer: str) -> float:
    """Exactly True or False; the package's scorer takes any text for True."""
    said = answer.strip().lower()
    if said not in ("true", "false"):
        return 0.0
    return float(said == str(entry["answer"]).strip().lower())


_FACTORS = re.compile(r"\s*\d{1,30}(\s*[x\u00d7*]\s*\d{1,30})*\s*")


def _prime_factorization(entry: dict[str, Any], answer: str) -> float:
    """The prime factors in any order; the package's scorer raises on anything but integers."""
    if not _FACTORS.fullmatch(answer):
        return 0.0
    return float(_factors(answer) == _factors(str(entry["answer"])))


def _factors(text: str) -> list[int]:
    return sorted(map(int, re.findall(r"\d+", text)))


OWN_SCORERS: dict[str, Callable[[dict[str, Any], str], float]] = {
    "game_of_life_halting": _game_of_life_halting,
    "prime_factorization": _prime_factorization,
}
"""Families whose scorer in the package is wrong."""
