"""Which prompts a generation batch draws, and how that changes from round to round."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from schemas.base import Contract


class Ramp(Contract):
    """From nothing before `first_round`, in a straight line, to everything at `full_round`."""

    first_round: int = Field(default=1, ge=1)
    """First round with any."""
    full_round: int | None = Field(default=None, ge=1)
    """First round with all; none means at once."""

    @model_validator(mode="after")
    def _rounds_ascend(self) -> Self:
        if self.full_round is not None and self.full_round < self.first_round:
            raise ValueError(
                f"full_round={self.full_round} comes before first_round={self.first_round}; a ramp "
                "goes up"
            )
        return self

    def at(self, number: int) -> float:
        """Share reached in a round, from 0 to 1."""
        if number < self.first_round:
            return 0.0
        full = self.full_round if self.full_round is not None else self.first_round
        if number >= full:
            return 1.0
        return (number - self.first_round + 1) / (full - self.first_round + 1)


class TaskSchedule(Ramp):
    """How often a task family is drawn, from when on, and how long its answers may get."""

    weight: float = Field(default=1.0, gt=0.0)
    """Chance of the family relative to the other families of its kind of judge."""
    window: int | None = Field(default=None, ge=1)
    """Longest answer in tokens where that is less than the ladder's window."""


class ModelJudged(Ramp):
    """When prompts that a reward model judges join those that rules judge (report, sec. 4.3)."""

    first_round: int = Field(default=2, ge=1)
    """First round with any; rules alone judge before it."""
    share: float = Field(default=0.3, gt=0.0, lt=1.0)
    """Share of the prompts of a batch once the ramp is over."""


class CurriculumConfig(Contract):
    """The draw of prompts."""

    families: dict[str, TaskSchedule] = Field(default_factory=dict)
    """By task family; when empty, all prompts are equally likely. Otherwise every family of the
    prompts must be named."""
    model_judged: ModelJudged | None = None
    """Schedule of prompts judged by a model; required when there are any."""
    retire_pass_rate: float | None = Field(default=None, gt=0.0, le=1.0)
    """Prompts solved at least this often in the past are not drawn again (ScaleRL: 0.9)."""
    retire_samples: int = Field(default=8, ge=1)
    """Judged samples of a prompt before it may be retired."""

    @model_validator(mode="after")
    def _retirement_is_on_or_left_alone(self) -> Self:
        default = CurriculumConfig.model_fields["retire_samples"].default
        if self.retire_pass_rate is None and self.retire_samples != default:
            raise ValueError(
                f"retire_samples={self.retire_samples} means nothing without retire_pass_rate; set "
                "it, or remove retire_samples"
            )
        return self


class PassHistory(Contract):
    """How often prompts were judged and solved in the rounds so far; travels with the weights."""

    passed: dict[str, int] = Field(default_factory=dict)
    """Correct samples by prompt id."""
    judged: dict[str, int] = Field(default_factory=dict)
    """Judged samples by prompt id."""

    def record(self, prompt: str, correct: bool) -> None:
        """Count one judged sample."""
        self.judged[prompt] = self.judged.get(prompt, 0) + 1
        self.passed[prompt] = self.passed.get(prompt, 0) + correct

    def retired(self, config: CurriculumConfig) -> set[str]:
        """Prompts that are not drawn any more."""
        rate = config.retire_pass_rate
        if rate is None:
            return set()
        return {
            prompt
            for prompt, judged in self.judged.items()
            if judged >= config.retire_samples and self.passed[prompt] >= rate * judged
        }
