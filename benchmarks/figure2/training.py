"""One run of the study: an algorithm, a learning rate, a seed.

The only module of the study that calls the library's RL loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.figure2.auditing import audit_round
from benchmarks.figure2.problems import marker_tokens, problems
from longstride.model.hybrid import HybridModel
from longstride.rewards.scoring import score_answer
from longstride.rl.objectives import objective_of
from longstride.rollout.native import NativeGenerator
from longstride.store.seeds import stream_seed
from longstride.tokens.chat import render_prompt
from longstride.tokens.tokenizer import THINK, Tokenizer
from longstride.training.checkpoints import open_checkpoint
from longstride.training.collecting import collect_batch, sampling_settings
from longstride.training.engines import create_engine
from longstride.training.ranks import Ranks
from longstride.training.updating import (
    UpdateSettings,
    check_agreement,
    recompute_old_policy,
    split_updates,
    update,
)
from schemas.recipe import Recipe
from schemas.rows import Message, RLPrompt, Rollout


@dataclass(frozen=True)
class Sizes:
    """How much is measured."""

    prompts: int = 5_000
    """RL problems."""
    held_out: int = 128
    """Problems of an evaluation, the same at every step of every run."""
    samples: int = 2
    """Samples of each of them (k of avg@k)."""
    evaluate_every: int = 1
    """Generation batches between evaluations."""


class Policy:
    """The policy being trained, with what it is asked and how it is measured."""

    def __init__(self, recipe: Recipe, shared: Path, sizes: Sizes, tuning: bool) -> None:
        checkpoint = open_checkpoint(shared / "sft")
        self.recipe, self.sizes = recipe, sizes
        self.checkpoint_digest = checkpoint.digest
        self.tokenizer = Tokenizer.load(shared / "tokenizer")
        self.markers = marker_tokens(self.tokenizer)
        self.engine = create_engine(
            checkpoint.model.float(), recipe.rl.optimizer, recipe.engine, Ranks()
        )
        self.generator = NativeGenerator(self.engine.sampling_model(), recipe.rollout.max_batch)
        # The seed of the problems is a constant of the study; that of a run orders them.
        self.prompts = problems(sizes.prompts, "rl", 0)
        self.questions = problems(sizes.held_out, "tuning" if tuning else "held-out", 0)
        self.window = recipe.ladder.windows[-1]
        self.settings = UpdateSettings(
            objective=objective_of(recipe.rl.algorithm),
            updates=recipe.rl.updates_per_batch,
            learning_rate=recipe.rl.learning_rate,
            grad_clip=recipe.rl.optimizer.grad_clip,
            temperature=recipe.rollout.temperature,
            minimum_correlation=recipe.rl.minimum_probability_correlation,
        )
        self.step = 0

    def learn(self, number: int) -> dict[str, Any]:
        """Sample a batch, take its updates, and return what happened."""
        self.generator.sync(self.engine.sampling_model(), self.step)
        batch = collect_batch(
            self.recipe,
            self.prompts,
            self.generator,
            self.tokenizer,
            window=self.window,
            round_number=0,
            batch_number=number,
        )
        entropy = recompute_old_policy(
            self.engine, batch.rollouts, self.recipe.rollout.temperature
        )
        agreement = check_agreement(batch.rollouts, self.settings.minimum_correlation)
        trainable = [rollout for rollout in batch.kept if rollout.advantage is not None]
        seed = stream_seed(self.recipe.seed, "rl", 0, number, "updates")
        rounds, norms = [], []
        for minibatch in (
            split_updates(trainable, self.settings.updates, seed) if trainable else ()
        ):
            norms.append(update(self.engine, minibatch, self.settings)["rl/grad_norm"])
            rounds.append(audit_round(minibatch, self.settings.objective, self.markers))
            self.step += 1
        return {
            "batch": number,
            "step": self.step,
            "accuracy": fmean(bool(r.correct) for r in batch.rollouts),
            "marker": self.marker_rate(batch.rollouts),
            "entropy": entropy,
            "length": fmean(len(r.tokens) for r in batch.rollouts),
            "groups": batch.kept_groups,
            "correlation": agreement.correlation,
            "norm": fmean(norms) if norms else 0.0,
            "rounds": rounds,
        }

    def marker_rate(self, rollouts: Sequence[Rollout]) -> float:
        """Share of samples that hold a marker."""
        return fmean(any(token in self.markers for token in r.tokens) for r in rollouts)

    def evaluate(self, number: int) -> dict[str, float]:
        """avg@k on the held-out problems, with the policy before batch `number`."""
        prompts = [_rendered(self.tokenizer, question) for question in self.questions]
        settings = sampling_settings(self.recipe, self.tokenizer, self.window)
        groups = self.generator.generate(prompts, self.sizes.samples, settings, seed=0)
        correct, marked, lengths = [], [], []
        for question, samples in zip(self.questions, groups, strict=True):
            for sample in samples:
                score = score_answer(
                    question,
                    self.tokenizer.decode_sample(sample.tokens),
                    sample.finish_reason,
                    len(sample.tokens),
                    self.window,
                    self.recipe.rewards,
                )
                correct.append(bool(score.correct))
                marked.append(any(token in self.markers for token in sample.tokens))
                lengths.append(len(sample.tokens))
        return {
            "batch": number,
            "step": self.step,
            "accuracy": fmean(correct),
            "marker": fmean(marked),
            "length": fmean(lengths),
            "marker_probability": self.marker_probability(),
        }

    @torch.no_grad()
    def marker_probability(self) -> float:
        """Probability of any marker right after a quick answer of 10, mean over the problems."""
        model: HybridModel = self.engine.sampling_model()
        begun = [self.tokenizer.special(THINK), *self.tokenizer.encode("10")]
        rows = [_rendered(self.tokenizer, question) + begun for question in self.questions]
        if len({len(row) for row in rows}) != 1:
            raise ValueError("problems of different lengths; render them one at a time")
        logits = model.logits(model(torch.tensor(rows)).hidden_BTD[:, -1])
        return float(logits.softmax(-1)[:, sorted(self.markers)].sum(-1).mean())


def _rendered(tokenizer: Tokenizer, question: RLPrompt) -> list[int]:
    return render_prompt(tokenizer, [Message(role="user", content=question.prompt)])


def train(recipe: Recipe, shared: Path, sizes: Sizes, *, tuning: bool) -> dict[str, Any]:
    """One run: its evaluations, its batches, and the CPU seconds that it took."""
    torch.set_num_threads(1)
    started = time.process_time()
    policy = Policy(recipe, shared, sizes, tuning)
    batches, evaluations = [], []
    for number in range(recipe.rl.batches_per_round):
        if number % sizes.evaluate_every == 0:
            evaluations.append(policy.evaluate(number))
        batches.append(policy.learn(number))
    evaluations.append(policy.evaluate(recipe.rl.batches_per_round))
    return {
        "checkpoint": policy.checkpoint_digest,
        "evaluations": evaluations,
        "batches": batches,
        "cpu_seconds": time.process_time() - started,
    }
