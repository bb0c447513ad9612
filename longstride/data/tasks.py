"""Verifiable problems from reasoning-gym, in splits that can never share a problem."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterator, Sequence
from typing import Any, Literal

from longstride.data.text import digest, problem_key
from longstride.errors import DataError, RecipeError
from longstride.rewards.reasoning import REFUSED_FAMILIES, load
from longstride.rewards.verifiers import REASONING_GYM, accepts
from schemas.data import TaskFamily
from schemas.rows import RLPrompt

Split = Literal["sft", "rl", "benchmark"]

# A problem's bucket is a digest of its question, so a split is a property of the problem itself:
# no choice of seeds, sizes or levels can put one problem into two splits. (reasoning-gym seeds
# item i with seed + i: neighbouring seeds alone would share nearly all problems.)
_BUCKETS = 20
SPLIT_BUCKETS: dict[Split, range] = {
    "sft": range(10),
    "rl": range(10, 15),
    "benchmark": range(15, 20),
}

UNSAFE_FAMILIES = REFUSED_FAMILIES

_CHUNK = 512
_DRAWS_PER_PROBLEM = 80


def split_of(question: str) -> Split:
    """The split that a question's problem belongs to, whatever its wording, family or seed."""
    bucket = int(problem_key(question)[:8], 16) % _BUCKETS
    return next(split for split, buckets in SPLIT_BUCKETS.items() if bucket in buckets)


def problems(family: TaskFamily, level: int, count: int, seed: int, split: Split) -> list[RLPrompt]:
    """Distinct problems of one level of a family, fewer than `count` when no more exist.

    Every problem's reference answer verifies against itself and three wrong answers do not;
    problems where this fails are left out.

    Raises:
        RecipeError: The family or the level is unknown, unsafe, or its parameters are refused.
        DataError: The level has too few distinct problems to be of use.
    """
    if not 0 <= level < len(family.levels):
        raise RecipeError(
            f"task family {family.name!r} has levels 0 to {len(family.levels) - 1}, not {level}"
        )
    found: dict[str, RLPrompt] = {}
    unsound = 0
    for item in _draws(family, level, count, seed, split):
        if split_of(item["question"]) != split:
            continue
        prompt = _prompt(family.name, level, _plain(family.name, item))
        if not is_sound(prompt):
            unsound += 1
        else:
            found.setdefault(prompt.id, prompt)
        if len(found) == count:
            break
    least = min(count, 4)
    if len(found) < least:
        raise DataError(
            f"task family {family.name!r}, level {level} ({family.levels[level].parameters}) has "
            f"only {len(found)} distinct usable problems in the {split} split ({unsound} more are "
            "unusable: their scorer rejects the reference or accepts a wrong answer), at least "
            f"{least} are needed; widen its parameters or choose another family"
        )
    return list(found.values())


def draw(tasks: Sequence[TaskFamily], count: int, seed: int, split: Split) -> list[RLPrompt]:
    """Problems of all families and levels in proportion to their weights, grouped by level.

    No question occurs twice. What a small level lacks is drawn from the levels that have more; the
    result is shorter than `count` when all of them are exhausted.

    Raises:
        DataError: A level has too few distinct problems to be of use.
    """
    cells = [(family, level) for family in tasks for level in range(len(family.levels))]
    weights = [_cell_weight(family, level) for family, level in cells]
    taken: list[list[RLPrompt]] = [[] for _ in cells]
    seen: set[str] = set()
    unexhausted = list(range(len(cells)))
    while unexhausted and (missing := count - sum(map(len, taken))) > 0:
        shares = allocate(missing, [weights[index] for index in unexhausted])
        for index, share in list(zip(unexhausted, shares, strict=True)):
            family, level = cells[index]
            fresh = _fresh(family, level, share, seed, split, seen, len(taken[index]))
            taken[index] += fresh
            if len(fresh) < share:
                unexhausted.remove(index)
    return [prompt for cell in taken for prompt in cell]


def _fresh(
    family: TaskFamily,
    level: int,
    share: int,
    seed: int,
    split: Split,
    seen: set[str],
    already: int,
) -> list[RLPrompt]:
    """The first `share` problems of a level that are not in `seen`, which they join."""
    asked, fresh = share + already, list[RLPrompt]()
    while share:
        pool = problems(family, level, asked, seed, split)
        fresh = [prompt for prompt in pool if problem_key(prompt.prompt) not in seen][:share]
        if len(fresh) == share or len(pool) < asked:
            break
        asked *= 2  # levels overlap: some of these were drawn before
    seen.update(problem_key(prompt.prompt) for prompt in fresh)
    return fresh


def allocate(total: int, weights: Sequence[float]) -> list[int]:
    """Whole numbers in proportion to weights that sum to `total` (largest remainder)."""
    scale = total / sum(weights)
    exact = [weight * scale for weight in weights]
    shares = [int(value) for value in exact]
    order = sorted(range(len(weights)), key=lambda i: (shares[i] - exact[i], i))
    for index in order[: total - sum(shares)]:
        shares[index] += 1
    return shares


def is_sound(prompt: RLPrompt) -> bool:
    """Whether the reference verifies and wrong answers do not."""
    answer = prompt.answer
    wrong = ["zzz", f"{answer}x", f"1{answer}"]
    return accepts(prompt, answer) is True and all(accepts(prompt, w) is False for w in wrong)


def _cell_weight(family: TaskFamily, level: int) -> float:
    return family.weight * family.levels[level].weight / sum(lv.weight for lv in family.levels)


def _prompt(family: str, level: int, item: dict[str, Any]) -> RLPrompt:
    key = digest(item["question"])[:16]
    return RLPrompt(
        id=f"{family}-{level}-{key}",
        prompt=item["question"].strip(),
        answer=str(item["answer"]),
        family=family,
        verifier=REASONING_GYM,
        entry=item,
        level=level,
    )


def _draws(
    family: TaskFamily, level: int, count: int, seed: int, split: Split
) -> Iterator[dict[str, Any]]:
    """Generated items in order, without repeats, until new ones have become rare."""
    key = f"{family.name}/{level}/{split}/{seed}"
    start = int.from_bytes(hashlib.sha256(key.encode()).digest()[:4], "big")
    limit = 1000 + _DRAWS_PER_PROBLEM * count
    seen: set[str] = set()
    stale = drawn = 0
    while drawn < limit and stale <= 500 + 4 * len(seen):
        dataset = _dataset(family, level, start + drawn, _CHUNK)
        for index in range(_CHUNK):
            drawn += 1
            item = dataset[index]
            if item["question"] in seen:
                stale += 1
                continue
            stale = 0
            seen.add(item["question"])
            yield item


def _plain(family: str, item: dict[str, Any]) -> dict[str, Any]:
    """The item as JSON gives it back, since scorers will see it only after such a round trip."""
    try:
        plain: dict[str, Any] = json.loads(json.dumps(item))
    except (TypeError, ValueError) as error:
        raise DataError(
            f"task family {family!r} cannot be used: its records are not plain JSON ({error})"
        ) from error
    return plain


def _dataset(family: TaskFamily, level: int, seed: int, size: int) -> Any:
    check_family(family.name)
    from reasoning_gym import create_dataset

    parameters = family.levels[level].parameters
    try:
        return create_dataset(family.name, seed=seed, size=size, **parameters)
    except (TypeError, ValueError, AssertionError) as error:
        raise RecipeError(
            f"task family {family.name!r}, level {level}: reasoning-gym refuses the parameters "
            f"{parameters}: {error}"
        ) from error


def check_family(name: str) -> None:
    """Refuse a family that does not exist or cannot be verified.

    Raises:
        RecipeError: With the reason, and similar names when the name is unknown.
    """
    if name in UNSAFE_FAMILIES:
        raise RecipeError(
            f"task family {name!r} is refused: {UNSAFE_FAMILIES[name]}; choose another"
        )
    load()
    from reasoning_gym.factory import DATASETS

    if name not in DATASETS:
        near = difflib.get_close_matches(name, DATASETS, 3)
        hint = f"did you mean {near}?" if near else f"there are {len(DATASETS)}"
        raise RecipeError(f"task family {name!r} is not a reasoning-gym dataset; {hint}")
