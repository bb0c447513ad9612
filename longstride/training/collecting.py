"""Phases collect, judge, select and advantages of an RL batch: prompts -> judged groups."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from longstride.data.curriculum import PromptDraw
from longstride.errors import DataError
from longstride.rewards.scoring import Reward, Sampled, refuse_non_finite, score_answers
from longstride.rl.advantages import carries_signal, normalise
from longstride.rollout.protocol import Generator, Sample, SamplingSettings
from longstride.store.seeds import stream_seed
from longstride.tokens.chat import render_prompt
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.judging import RoundJudge
from schemas.algorithms import AdvantageConfig
from schemas.recipe import Recipe
from schemas.rows import Message, RLPrompt, Rollout

_ROWS = ("kept", "dropped")
_COUNTS = ("kept_groups", "dropped_groups", "waves", "dropped_for", "facts", "judge")


@dataclass
class Batch:
    """One generation batch.

    Attributes:
        kept: rollouts of groups that carry signal, with advantages.
        dropped: rollouts of groups without spread.
        kept_groups: groups with signal.
        dropped_groups: groups without.
        waves: generation waves used; more than one means that the batch was refilled.
        dropped_for: dropped groups by reason.
        facts: measured while it was made, by metric name.
        judge: state of the judge after its last wave, as JSON; empty where it has none.
    """

    kept: list[Rollout] = field(default_factory=list)
    dropped: list[Rollout] = field(default_factory=list)
    kept_groups: int = 0
    dropped_groups: int = 0
    waves: int = 0
    dropped_for: dict[str, int] = field(default_factory=dict)
    facts: dict[str, float] = field(default_factory=dict)
    judge: dict[str, Any] = field(default_factory=dict)

    @property
    def rollouts(self) -> list[Rollout]:
        """Everything that was generated."""
        return self.kept + self.dropped

    @property
    def groups(self) -> int:
        """Groups generated so far."""
        return self.kept_groups + self.dropped_groups


def batch_to_json(batch: Batch) -> dict[str, Any]:
    """A batch as JSON, for other ranks and for files."""
    rows = {name: [r.model_dump(mode="json") for r in getattr(batch, name)] for name in _ROWS}
    counts = {name: getattr(batch, name) for name in _COUNTS}
    return {**rows, **counts}


def batch_from_json(values: dict[str, Any]) -> Batch:
    """The batch again."""
    kept, dropped = ([Rollout.model_validate(row) for row in values[name]] for name in _ROWS)
    return Batch(kept, dropped, **{name: values[name] for name in _COUNTS})


def sampling_settings(recipe: Recipe, tokenizer: Tokenizer, window: int) -> SamplingSettings:
    """How RL samples at a window."""
    return SamplingSettings(
        max_new_tokens=window,
        temperature=recipe.rollout.temperature,
        top_p=recipe.rollout.top_p,
        stop_ids=(tokenizer.end_id,),
        repetition_run=recipe.rollout.repetition_run,
        repetition_threshold=recipe.rollout.repetition_threshold,
    )


@dataclass(frozen=True)
class Collector:
    """Fills generation batches of one round."""

    recipe: Recipe
    prompts: Sequence[RLPrompt]
    generator: Generator
    tokenizer: Tokenizer
    window: int
    round_number: int
    judge: RoundJudge
    retired: frozenset[str] = frozenset()

    def collect(
        self,
        number: int,
        begun: Batch | None = None,
        after_wave: Callable[[Batch], None] = lambda batch: None,
    ) -> Batch:
        """Generate, judge and select exactly `groups_per_batch` groups that carry signal.

        With dynamic sampling, groups without spread are dropped and new prompts are drawn for them,
        for at most `max_refills` further waves; after that the batch is what there is, and
        `rl.exhaustion` says what becomes of it.

        Args:
            number: of the batch within the round.
            begun: the batch as it was after one of its waves, to go on from.
            after_wave: called with the batch after each wave.

        Raises:
            UnusableRewards: A reward is not finite.
        """
        rl = self.recipe.rl
        batch = begun or Batch()
        self.judge.go_on_from(batch.judge)
        draw = self._draw(number)
        for _ in range(batch.groups):
            draw.next()
        while batch.kept_groups < rl.groups_per_batch and batch.waves <= rl.max_refills:
            wanted = rl.groups_per_batch - batch.kept_groups
            chosen = [draw.next() for _ in range(wanted)]
            for group in self._judged(chosen, draw, number, batch):
                _select(batch, group, keep_all=not rl.dynamic_sampling)
            batch.waves += 1
            batch.judge = self.judge.state()
            after_wave(batch)
        assign_advantages(batch, rl.advantage)
        return batch

    def _draw(self, number: int) -> PromptDraw:
        return PromptDraw(
            self.prompts,
            self.recipe.rl.curriculum,
            round_number=self.round_number,
            retired=self.retired,
            seed=stream_seed(self.recipe.seed, "rl", self.round_number, number, "prompts"),
        )

    def _judged(
        self, chosen: Sequence[RLPrompt], draw: PromptDraw, number: int, batch: Batch
    ) -> list[list[Rollout]]:
        """One wave: a judged group of each prompt, in the order of the prompts."""
        windows = [draw.window(prompt, self.window) for prompt in chosen]
        rendered = [
            render_prompt(self.tokenizer, [Message(role="user", content=p.prompt)]) for p in chosen
        ]
        drawn: list[list[Sample]] = [[] for _ in chosen]
        for window in sorted(set(windows)):
            places = [place for place, own in enumerate(windows) if own == window]
            names = ("rl", self.round_number, number, "samples", batch.waves, window)
            sampled = self.generator.generate(
                [rendered[place] for place in places],
                self.recipe.rl.group_size,
                sampling_settings(self.recipe, self.tokenizer, window),
                stream_seed(self.recipe.seed, *names),
            )
            for place, samples in zip(places, sampled, strict=True):
                drawn[place] = list(samples)
        return self._judge(chosen, rendered, drawn, windows, number, batch.groups)

    def _judge(
        self,
        chosen: Sequence[RLPrompt],
        rendered: Sequence[list[int]],
        drawn: Sequence[Sequence[Sample]],
        windows: Sequence[int],
        number: int,
        first_group: int,
    ) -> list[list[Rollout]]:
        """Judge the samples of all prompts together."""
        wave = [
            Sampled(
                prompt,
                self.tokenizer.decode_sample(sample.tokens),
                sample.finish_reason,
                len(sample.tokens),
                window,
            )
            for prompt, samples, window in zip(chosen, drawn, windows, strict=True)
            for sample in samples
        ]
        rewards = score_answers(wave, self.judge, self.recipe.rewards)
        left = iter(zip(wave, rewards, strict=True))
        groups = [
            [
                _rollout(rendered[place], sample, *next(left), (first_group + place, index, number))
                for index, sample in enumerate(drawn[place])
            ]
            for place in range(len(chosen))
        ]
        try:
            refuse_non_finite(rewards, wave, f"batch {number}")
        except DataError as error:
            raise UnusableRewards(str(error), [r for group in groups for r in group]) from error
        return groups


class UnusableRewards(DataError):
    """A reward is not finite. Holds the wave, in which such rewards are left out."""

    def __init__(self, message: str, rollouts: list[Rollout]) -> None:
        super().__init__(message)
        self.rollouts = rollouts


def _rollout(
    prompt_tokens: list[int],
    sample: Sample,
    sampled: Sampled,
    reward: Reward,
    place: tuple[int, int, int],
) -> Rollout:
    """The record of a judged sample; `place` is its group, number in the group, and batch."""
    finite = reward.reward is None or math.isfinite(reward.reward)
    return Rollout(
        prompt_id=sampled.prompt.id,
        family=sampled.prompt.family,
        group=place[0],
        sample=place[1],
        batch=place[2],
        prompt_tokens=prompt_tokens,
        tokens=sample.tokens,
        logprobs=[value if math.isfinite(value) else None for value in sample.logprobs],
        text=sampled.text,
        finish_reason=sample.finish_reason,
        reward=reward.reward if finite else None,
        rewards=reward.rewards if finite else {},
        correct=reward.correct,
        not_judged=reward.not_judged,
        window=sampled.window,
        policy_version=sample.policy_version,
    )


def assign_advantages(batch: Batch, config: AdvantageConfig) -> None:
    """Write the advantage of every kept rollout.

    Without dynamic sampling a group without spread is kept too, and its gradient is zero.
    """
    groups: dict[int, list[Rollout]] = {}
    for rollout in batch.kept:
        groups.setdefault(rollout.group, []).append(rollout)
    members = list(groups.values())
    rewards = [[rollout.reward for rollout in group] for group in members]
    advantages = normalise(rewards, config.scale, config.deviation)
    for group, values in zip(members, advantages, strict=True):
        for rollout, value in zip(group, values, strict=True):
            rollout.advantage = value


def why_without_signal(group: Sequence[Rollout]) -> str:
    """Why nothing can be learnt from a group."""
    judged = [rollout for rollout in group if rollout.reward is not None]
    if len(judged) < 2:
        return "not_judged"
    if all(rollout.correct for rollout in judged):
        return "all_right"
    if not any(rollout.correct for rollout in judged):
        return "all_wrong"
    return "equal_rewards"


def _select(batch: Batch, group: list[Rollout], *, keep_all: bool) -> None:
    signal = carries_signal([rollout.reward for rollout in group])
    if signal or keep_all:
        batch.kept += group
        batch.kept_groups += 1
    else:
        batch.dropped += group
        batch.dropped_groups += 1
    if not signal:
        counts = Counter(batch.dropped_for)
        counts[why_without_signal(group)] += 1
        batch.dropped_for = dict(counts)
