"""The draw of RL prompts: families by weight and schedule, judges by schedule, retirement."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Collection, Sequence

from longstride.errors import DataError
from schemas.curriculum import CurriculumConfig, TaskSchedule
from schemas.rows import RLPrompt


class PromptDraw:
    """An endless draw of prompts for one generation batch of one round.

    A prompt comes again only after every other prompt of its queue has come. With families in the
    configuration there is a queue a family, otherwise one for each kind of judge.
    """

    def __init__(
        self,
        prompts: Sequence[RLPrompt],
        config: CurriculumConfig,
        *,
        round_number: int,
        retired: Collection[str],
        seed: int,
    ) -> None:
        """Sort the prompts into queues.

        Raises:
            DataError: The configuration and the prompts do not fit, or no prompt can be drawn.
        """
        _check(prompts, config)
        self._config = config
        self._rng = random.Random(seed)
        self._model_share = (
            config.model_judged.share * config.model_judged.at(round_number)
            if config.model_judged
            else 0.0
        )
        self._queues: dict[str, dict[str, _Queue]] = {"rule": {}, "model": {}}
        self._weights: dict[str, list[float]] = {}
        groups: dict[tuple[str, str], list[RLPrompt]] = defaultdict(list)
        for prompt in prompts:
            if prompt.id not in retired:
                groups[prompt.judge, prompt.family if config.families else ""].append(prompt)
        for (judge, family), members in sorted(groups.items()):
            weight = self._schedule(family).weight * self._schedule(family).at(round_number)
            if weight > 0:
                self._queues[judge][family] = _Queue(members, self._rng)
                self._weights.setdefault(judge, []).append(weight)
        if not self._queues["rule"] and not (self._queues["model"] and self._model_share):
            raise DataError(self._why_empty(len(prompts), len(retired), round_number))

    def next(self) -> RLPrompt:
        """The next prompt."""
        model = bool(self._queues["model"]) and self._rng.random() < self._model_share
        judge = "model" if model or not self._queues["rule"] else "rule"
        families = list(self._queues[judge])
        (family,) = self._rng.choices(families, self._weights[judge])
        return self._queues[judge][family].next()

    def window(self, prompt: RLPrompt, window: int) -> int:
        """Longest answer to a prompt in tokens: the ladder's window, or its family's if shorter."""
        own = self._schedule(prompt.family if self._config.families else "").window
        return window if own is None else min(own, window)

    def _schedule(self, family: str) -> TaskSchedule:
        return self._config.families.get(family, TaskSchedule())

    def _why_empty(self, prompts: int, retired: int, round_number: int) -> str:
        if retired:
            return (
                f"round {round_number} has no prompt left to draw: {retired} of {prompts} are "
                f"retired at retire_pass_rate={self._config.retire_pass_rate}; add harder prompts, "
                "or raise the rate"
            )
        return (
            f"round {round_number} has no prompt to draw: no family of the {prompts} prompts is "
            "scheduled that early; lower first_round of one that rules judge"
        )


class _Queue:
    """Prompts in random order, reshuffled when all were drawn."""

    def __init__(self, prompts: Sequence[RLPrompt], rng: random.Random) -> None:
        self._prompts = list(prompts)
        self._rng = rng
        self._left: list[RLPrompt] = []

    def next(self) -> RLPrompt:
        if not self._left:
            self._left = self._rng.sample(self._prompts, len(self._prompts))
        return self._left.pop()


def _check(prompts: Sequence[RLPrompt], config: CurriculumConfig) -> None:
    """Refuse a configuration that would be ignored in part.

    Raises:
        DataError: A family or a kind of judge is in one of the two and not in the other.
    """
    if not prompts:
        raise DataError("there are no RL prompts; loosen the curation, or add tasks")
    if config.families:
        present = {prompt.family for prompt in prompts}
        if unknown := sorted(set(config.families) - present):
            raise DataError(
                f"rl.curriculum.families names {unknown}, but the prompts are of "
                f"{sorted(present)}; correct the names"
            )
        if unnamed := sorted(present - set(config.families)):
            raise DataError(
                f"rl.curriculum.families says nothing about {unnamed}; name every family of the "
                "prompts, or none"
            )
    judged_by_model = sum(prompt.judge == "model" for prompt in prompts)
    if judged_by_model and config.model_judged is None:
        raise DataError(
            f"{judged_by_model} prompts are judged by a model, but rl.curriculum.model_judged does "
            "not say when they join; set it"
        )
    if config.model_judged and not judged_by_model:
        raise DataError(
            "rl.curriculum.model_judged is set, but no prompt is judged by a model; remove it"
        )
