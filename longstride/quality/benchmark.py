"""The benchmark's problems as an index to look for in training data."""

from __future__ import annotations

from typing import Final

from longstride.data.measures.overlap import Problem, ProblemIndex
from longstride.data.measures.words import WordHasher
from longstride.errors import DataError, GateCouldNotRun
from schemas.recipe import Recipe

NGRAM: Final = 8
"""Words of an n-gram for problems (open-r1, s1)."""


def benchmark_index(recipe: Recipe, hasher: WordHasher) -> ProblemIndex:
    """Index the held-out problems of a recipe.

    Raises:
        GateCouldNotRun: The problems cannot be made.
    """
    from longstride.data.held_out import benchmark_problems

    try:
        problems = benchmark_problems(recipe)
    except DataError as error:
        raise GateCouldNotRun(f"the benchmark's problems cannot be made: {error}") from error
    return ProblemIndex((Problem(p.id, p.family, p.prompt) for p in problems), NGRAM, hasher)
