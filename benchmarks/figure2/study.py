"""The study as data: what is compared, with which seeds and rates, and where each run is kept."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from pydantic import Field

from longstride.recipe.loading import load_recipe
from schemas.base import Contract, digest_of
from schemas.recipe import Recipe

RECIPE = Path(__file__).parent / "recipe.yaml"
AlgorithmName = Literal["grpo", "dapo", "cispo"]
ALGORITHMS: dict[AlgorithmName, str] = {
    "grpo": "{kind: grpo, clip_low: 0.2, clip_high: 0.2}",
    "dapo": "{kind: dapo, clip_low: 0.2, clip_high: 0.28}",
    "cispo": "{kind: cispo, is_weight_cap: 5.0}",
}


class Sizes(Contract):
    """How much is asked and measured."""

    prompts: int = Field(default=5_000, ge=1)
    """RL problems."""
    held_out: int = Field(default=128, ge=2)
    """Problems of an evaluation, the same at every step of every run."""
    samples: int = Field(default=2, ge=1)
    """Samples of each of them (k of avg@k)."""
    batches: int = Field(default=16, ge=2)
    """Generation batches of a run, tuning runs included."""


class Study(Contract):
    """Everything that results depend on, apart from the code."""

    sizes: Sizes = Field(default_factory=Sizes)
    """How much is asked and measured."""
    rates: list[float] = Field(default=[6e-5, 1.2e-4, 2.4e-4, 4.8e-4], min_length=1)
    """Learning rates that are tried for every algorithm."""
    tuning_seeds: list[int] = Field(default=[101, 102], min_length=1)
    """Seeds of the runs that choose the learning rates."""
    seeds: list[int] = Field(default=[1, 2, 3, 4, 5], min_length=2)
    """Seeds of the comparison; never those of tuning."""
    overrides: list[str] = Field(default_factory=list)
    """Changes of the recipe, `dotted.field=value`."""

    def recipe(self, changes: Sequence[str] = ()) -> Recipe:
        """The recipe that all runs share, or that of one run."""
        batches = f"rl.batches_per_round={self.sizes.batches}"
        return load_recipe(RECIPE, [*self.overrides, batches, *changes])


class Job(Contract):
    """One run: a process of its own, and a result file of its own."""

    algorithm: AlgorithmName
    """What is optimised."""
    rate: float = Field(gt=0.0)
    """Learning rate."""
    seed: int = Field(ge=0)
    """Orders the prompts and draws the samples."""
    tuning: bool
    """Evaluated on the tuning problems, not on the held-out ones."""

    @property
    def name(self) -> str:
        """Name of the files of the run."""
        part = "tuning" if self.tuning else "study"
        return f"{part}-{self.algorithm}-{self.rate:g}-{self.seed}"

    def recipe(self, study: Study) -> Recipe:
        """The recipe of the run."""
        return study.recipe(
            [
                f"rl.algorithm={ALGORITHMS[self.algorithm]}",
                f"rl.learning_rate={self.rate}",
                f"seed={self.seed}",
            ]
        )

    def key(self, study: Study, checkpoint: str) -> str:
        """Digest of all that the result depends on, apart from the code."""
        sizes = study.sizes.model_dump()
        return digest_of([self.recipe(study).digest(), sizes, checkpoint, self.tuning])


def tuning_jobs(study: Study) -> list[Job]:
    """All rates of all algorithms, on the tuning seeds and the tuning problems."""
    return [
        Job(algorithm=algorithm, rate=rate, seed=seed, tuning=True)
        for seed in study.tuning_seeds
        for rate in study.rates
        for algorithm in ALGORITHMS
    ]


def study_jobs(study: Study, rates: dict[str, dict[AlgorithmName, float]]) -> list[Job]:
    """The comparison at each set of rates; a run that two sets share is listed once."""
    wanted = {
        (seed, algorithm, chosen[algorithm]): None
        for chosen in rates.values()
        for seed in study.seeds
        for algorithm in ALGORITHMS
    }
    return [
        Job(algorithm=algorithm, rate=rate, seed=seed, tuning=False)
        for seed, algorithm, rate in wanted
    ]
