"""The problems that nothing trains on."""

from __future__ import annotations

from longstride.data.tasks import problems
from longstride.errors import DataError
from schemas.recipe import Recipe
from schemas.rows import RLPrompt


def benchmark_problems(recipe: Recipe) -> list[RLPrompt]:
    """Problems of every level of every family, from the benchmark split.

    Raises:
        DataError: A level has fewer distinct problems than `benchmark.problems_per_level`.
    """
    config = recipe.benchmark
    chosen: dict[str, RLPrompt] = {}
    for family in recipe.tasks:
        for level in range(len(family.levels)):
            wanted = config.problems_per_level
            # Levels may overlap: ask for more than the earlier ones can have taken.
            pool = problems(
                family, level, wanted * (level + 1), recipe.seed + config.seed_offset, "benchmark"
            )
            fresh = [prompt for prompt in pool if prompt.prompt not in chosen][:wanted]
            if len(fresh) < wanted:
                raise DataError(
                    f"task family {family.name!r}, level {level} has {len(fresh)} distinct "
                    f"benchmark problems, but benchmark.problems_per_level={wanted}; widen the "
                    "level's parameters or lower problems_per_level"
                )
            chosen |= {prompt.prompt: prompt for prompt in fresh}
    return list(chosen.values())
