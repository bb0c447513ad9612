"""The second choice of RL prompts, made when the policy can use a longer window.

MiniMax-M1 went from 40K to 80K tokens on other data than it began with: prompts that the 40K policy
solved nearly always were taken out, hard ones were added, and generated reasoning problems became
fewer, since their sameness led to repetition and homogeneity in long contexts (report, sec. 5.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from longstride.data.text import order_key
from longstride.errors import DataError
from longstride.store.files import read_jsonl
from schemas.base import Contract
from schemas.curriculum import PassHistory
from schemas.prompts import SecondPhase
from schemas.recipe import Recipe
from schemas.rows import RLPrompt

PROMPTS = "prompts.jsonl"
HARD = "hard.jsonl"
"""Prompts that the first policy never solved, kept beside those that it could learn from."""


class RecurationSummary(Contract):
    """What became of the prompts of the first phase."""

    before: int = Field(ge=0)
    """Prompts of the first phase."""
    after: int = Field(ge=0)
    """Prompts of the second."""
    dropped_easy: int = Field(ge=0)
    """Prompts that the policy solves nearly always by now."""
    added_hard: int = Field(ge=0)
    """Prompts that the first policy never solved."""
    dropped_synthetic: int = Field(ge=0)
    """Generated prompts taken out, easy ones not counted again, hard ones included."""
    unmeasured: int = Field(ge=0)
    """Prompts of the first phase with too few judged samples to be called easy."""
    families_before: dict[str, int]
    """Prompts of the first phase by family."""
    families_after: dict[str, int]
    """Prompts of the second phase by family."""


@dataclass(frozen=True)
class Recuration:
    """The second choice."""

    prompts: list[RLPrompt]
    """Prompts from now on."""
    summary: RecurationSummary
    """How they came about."""


def recurate(
    prompts: Sequence[RLPrompt],
    hard: Sequence[RLPrompt],
    history: PassHistory,
    plan: SecondPhase,
    *,
    synthetic: Collection[str],
    seed: int,
) -> Recuration:
    """Drop easy prompts, add hard ones, thin generated ones.

    A prompt's place in the thinning is a digest of its id: the same ones stay in every round, and
    a larger share keeps what a smaller one kept.

    Args:
        prompts: the choice of the first phase.
        hard: prompts that the first policy never solved.
        history: how often prompts were judged and solved in the rounds so far.
        plan: how much of each.
        synthetic: families of generated prompts.
        seed: of the order in which hard prompts are taken and generated ones thinned.

    Raises:
        DataError: No prompt is left.
    """
    easy = {prompt.id for prompt in prompts if _is_easy(prompt.id, history, plan)}
    known = {prompt.id for prompt in prompts}
    new = [prompt for prompt in hard if prompt.id not in known]
    new.sort(key=lambda prompt: order_key(seed, "hard", prompt.id))
    added = new[: plan.hard]
    candidates = [prompt for prompt in prompts if prompt.id not in easy] + added
    chosen = [
        prompt
        for prompt in candidates
        if prompt.family not in synthetic or _place(seed, prompt.id) < plan.synthetic_share
    ]
    if not chosen:
        raise DataError(
            f"rl.curation.second_phase leaves none of {len(prompts)} prompts: {len(easy)} are easy "
            f"at easy_pass_rate={plan.easy_pass_rate:g}, {len(added)} hard ones were added, and "
            f"synthetic_share={plan.synthetic_share:g} took out the rest; raise either, or hard"
        )
    summary = RecurationSummary(
        before=len(prompts),
        after=len(chosen),
        dropped_easy=len(easy),
        added_hard=sum(prompt.id not in known for prompt in chosen),
        dropped_synthetic=len(candidates) - len(chosen),
        unmeasured=sum(history.judged.get(p.id, 0) < plan.least_samples for p in prompts),
        families_before=_families(prompts),
        families_after=_families(chosen),
    )
    return Recuration(chosen, summary)


def prompts_of_round(
    recipe: Recipe, number: int, prompts_dir: Path, history: PassHistory
) -> tuple[list[RLPrompt], RecurationSummary | None]:
    """The prompts that a round draws from; with a summary when they are the second choice.

    Raises:
        DataError: A row is damaged, or the second choice is empty.
    """
    prompts = list(read_jsonl(prompts_dir / PROMPTS, RLPrompt))
    plan = recipe.rl.curation.second_phase
    if plan is None or number < plan.first_round:
        return prompts, None
    generated = {family.name for family in recipe.tasks}
    generated |= {s.family or s.name for s in recipe.rl.curation.sources if s.synthetic}
    path = prompts_dir / HARD
    hard = list(read_jsonl(path, RLPrompt)) if path.is_file() else []
    found = recurate(prompts, hard, history, plan, synthetic=generated, seed=recipe.seed)
    return found.prompts, found.summary


def _is_easy(prompt: str, history: PassHistory, plan: SecondPhase) -> bool:
    judged = history.judged.get(prompt, 0)
    passed = history.passed.get(prompt, 0)
    return judged >= plan.least_samples and passed >= plan.easy_pass_rate * judged


def _place(seed: int, prompt: str) -> float:
    return int.from_bytes(order_key(seed, "thin", prompt)[:8], "big") / 2**64


def _families(prompts: Sequence[RLPrompt]) -> dict[str, int]:
    return dict(sorted(Counter(prompt.family for prompt in prompts).items()))
