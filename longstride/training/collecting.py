"""Phases collect, judge and select of an RL batch: prompts -> groups of judged rollouts."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from longstride.rewards.scoring import score_answer
from longstride.rl.advantages import group_advantages
from longstride.rollout.protocol import Generator, Sample, SamplingSettings
from longstride.store.seeds import stream_seed
from longstride.tokens.chat import render_prompt
from longstride.tokens.tokenizer import Tokenizer
from schemas.recipe import Recipe
from schemas.rows import Message, RLPrompt, Rollout

_ROWS = ("kept", "dropped")
_COUNTS = ("kept_groups", "dropped_groups", "waves")


@dataclass
class Batch:
    """One generation batch.

    Attributes:
        kept: rollouts of groups that carry signal, with advantages.
        dropped: rollouts of groups without spread.
        kept_groups: groups with signal.
        dropped_groups: groups without.
        waves: generation waves used; more than one means that the batch was refilled.
    """

    kept: list[Rollout] = field(default_factory=list)
    dropped: list[Rollout] = field(default_factory=list)
    kept_groups: int = 0
    dropped_groups: int = 0
    waves: int = 0

    @property
    def rollouts(self) -> list[Rollout]:
        """Everything that was generated."""
        return self.kept + self.dropped


def batch_to_json(batch: Batch) -> dict[str, Any]:
    """A batch as JSON, for other ranks."""
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


def collect_batch(
    recipe: Recipe,
    prompts: Sequence[RLPrompt],
    generator: Generator,
    tokenizer: Tokenizer,
    *,
    window: int,
    round_number: int,
    batch_number: int,
) -> Batch:
    """Generate, judge and select exactly `groups_per_batch` groups that carry signal.

    With dynamic sampling, groups without spread are dropped and new prompts are drawn for them,
    for at most `max_refills` further waves; after that the batch is used as it is.
    """
    rl = recipe.rl
    names = ("rl", round_number, batch_number)
    queue = _prompt_queue(prompts, stream_seed(recipe.seed, *names, "prompts"))
    batch = Batch()
    settings = sampling_settings(recipe, tokenizer, window)
    while batch.kept_groups < rl.groups_per_batch and batch.waves <= rl.max_refills:
        wanted = rl.groups_per_batch - batch.kept_groups
        chosen = [next(queue) for _ in range(wanted)]
        rendered = [
            render_prompt(tokenizer, [Message(role="user", content=p.prompt)]) for p in chosen
        ]
        seed = stream_seed(recipe.seed, *names, "samples", batch.waves)
        groups = generator.generate(rendered, rl.group_size, settings, seed)
        for prompt, ids, samples in zip(chosen, rendered, groups, strict=True):
            number = batch.kept_groups + batch.dropped_groups
            judged = [
                _judge(recipe, tokenizer, prompt, ids, sample, window, number, index, batch_number)
                for index, sample in enumerate(samples)
            ]
            _select(batch, judged, keep_all=not rl.dynamic_sampling)
        batch.waves += 1
    return batch


def _prompt_queue(prompts: Sequence[RLPrompt], seed: int) -> Iterator[RLPrompt]:
    """Prompts in random order, reshuffled when all were used."""
    rng = random.Random(seed)
    while True:
        yield from rng.sample(list(prompts), len(prompts))


def _judge(
    recipe: Recipe,
    tokenizer: Tokenizer,
    prompt: RLPrompt,
    prompt_tokens: list[int],
    sample: Sample,
    window: int,
    group: int,
    index: int,
    batch_number: int,
) -> Rollout:
    text = tokenizer.decode_sample(sample.tokens)
    score = score_answer(
        prompt, text, sample.finish_reason, len(sample.tokens), window, recipe.rewards
    )
    return Rollout(
        prompt_id=prompt.id,
        group=group,
        sample=index,
        batch=batch_number,
        prompt_tokens=prompt_tokens,
        tokens=sample.tokens,
        logprobs=[value if math.isfinite(value) else None for value in sample.logprobs],
        text=text,
        finish_reason=sample.finish_reason,
        reward=score.reward,
        rewards=score.rewards,
        correct=score.correct,
        window=window,
        policy_version=sample.policy_version,
    )


def _select(batch: Batch, group: list[Rollout], *, keep_all: bool) -> None:
    advantages = group_advantages([rollout.reward for rollout in group])
    if advantages is None:
        if keep_all:
            # Without dynamic sampling a group without spread stays, and its gradient is zero.
            advantages = [None if rollout.reward is None else 0.0 for rollout in group]
        else:
            batch.dropped += group
            batch.dropped_groups += 1
            return
    for rollout, advantage in zip(group, advantages, strict=True):
        rollout.advantage = advantage
    batch.kept += group
    batch.kept_groups += 1
