"""What a poison is, and how one is given to a gate."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from quality_parts import Parts

import longstride.data.held_out as held_out
from longstride.errors import QualityGateBlocked
from longstride.quality import baselines
from longstride.quality.gate import run_gate
from longstride.store.files import read_json
from schemas.data import TaskFamily, TaskLevel
from schemas.recipe import Recipe
from schemas.verdict import Profile, Verdict


@dataclass(frozen=True)
class Poison:
    """A real artifact with one fault."""

    subject: Callable[[Parts, Path], Path] | None = None
    """Writes the poisoned artifact below a folder; None: the clean one."""
    also: frozenset[str] = frozenset()
    """Checks that the same fault breaks by its nature."""
    reference: Callable[[Parts, Path], Path] | None = None
    """Writes another reference; None: the clean one."""
    recipe: Callable[[Recipe], None] | None = None
    """Changes a copy of the recipe, where the fault is a disagreement with it."""
    stage: str | None = None


@dataclass(frozen=True)
class Clean:
    """The clean artifacts of an edge, by name in `Parts`."""

    stage: str
    subject: str
    reference: str | None


CLEAN = {
    "E1": Clean("corpus", "documents", "tokenizer"),
    "E2": Clean("extend-1", "extend-1", "tokenizer"),
    "E3": Clean("sft", "sft", "chat"),
    "E4": Clean("rl-prompts", "prompts", "chat"),
    "E5": Clean("rl-1", "rollouts", None),
    "E7": Clean("pretrain", "trained", "init"),
    "E8": Clean("benchmark", "after", "before"),
}


def wordy_family(weight=0.02):
    """A change of the recipe: a family whose problems quote texts of their own."""

    def change(recipe):
        level = TaskLevel(parameters={"min_words": 14, "max_words": 14})
        recipe.tasks.append(TaskFamily(name="letter_counting", levels=[level], weight=weight))

    return change


def quoted_words(parts) -> str:
    """Ten words in a row of such a problem, and not the whole of it."""
    recipe = parts.recipe.model_copy(deep=True)
    wordy_family()(recipe)
    problem = held_out.benchmark_problems(recipe)[-1]
    return " ".join(problem.prompt.split('"')[3].split()[2:12])


def verdict_on(edge: str, poison: Poison, parts: Parts, out: Path) -> Verdict:
    """What the whole gate says of a poison, Great Expectations included."""
    clean = CLEAN[edge]
    recipe = parts.recipe.model_copy(deep=True)
    if poison.recipe:
        poison.recipe(recipe)
    subject = poison.subject(parts, out / "subject") if poison.subject else parts[clean.subject]
    reference = parts[clean.reference] if clean.reference else None
    if poison.reference:
        reference = poison.reference(parts, out / "reference")
    stage = poison.stage or clean.stage
    try:
        return run_gate(edge, stage, recipe, subject, reference, out / "verdict")
    except QualityGateBlocked:
        return read_json(out / "verdict" / "verdict.json", Verdict)


def failed(verdict: Verdict) -> set[str]:
    return {check.name for check in verdict.checks if not check.passed}


def bless_other(verdict_folder: Path, store: Path, column: str) -> None:
    """Bless a clean profile in which one number was far away."""
    profile = read_json(verdict_folder / baselines.PROFILE, Profile)
    facts = {**profile.facts, column: 3.0 * profile.facts[column] + 1.0}
    baselines.add(store, profile.model_copy(update={"facts": facts}))
