"""One run of the study: an algorithm, a learning rate, a seed.

The only module of the study that calls the library's RL loop.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

from benchmarks.figure2.problems import marker_tokens, problems
from benchmarks.figure2.study import Sizes
from longstride.model.hybrid import HybridModel
from longstride.rewards.judging import RuleJudge
from longstride.rewards.scoring import Sampled, score_answers
from longstride.rl.objectives import objective_of
from longstride.rl.reflection import ReflectionMatcher
from longstride.rollout.native import NativeGenerator
from longstride.store.seeds import stream_seed
from longstride.tokens.chat import render_prompt
from longstride.tokens.tokenizer import THINK, Tokenizer
from longstride.training.checkpoints import open_checkpoint
from longstride.training.collecting import Collector, sampling_settings
from longstride.training.engines import create_engine
from longstride.training.guarding import UpdateGuard
from longstride.training.judging import RoundJudge
from longstride.training.ranks import Ranks
from longstride.training.updating import (
    UpdateSettings,
    check_agreement,
    recompute_old_policy,
    split_updates,
    update,
)
from schemas.audit import AuditRow
from schemas.recipe import Recipe
from schemas.rows import Message, RLPrompt, Rollout


class Policy:
    """The policy being trained, with what it is asked and how it is measured."""

    def __init__(self, recipe: Recipe, shared: Path, sizes: Sizes, tuning: bool) -> None:
        checkpoint = open_checkpoint(shared / "sft")
        self.recipe, self.sizes = recipe, sizes
        self.checkpoint_digest = checkpoint.digest
        self.tokenizer = Tokenizer.load(shared / "tokenizer")
        self.markers = marker_tokens(self.tokenizer)
        self.matcher = ReflectionMatcher(recipe.rl.audit.reflection, self.tokenizer.token_bytes)
        self.engine = create_engine(
            checkpoint.model.float(), recipe.rl.optimizer, recipe.engine, Ranks()
        )
        self.generator = NativeGenerator(self.engine.sampling_model(), recipe.rollout.max_batch)
        self.guard = UpdateGuard(recipe.rl.maximum_bad_updates, None)
        self.window = recipe.ladder.windows[-1]
        # The problems are the same in all runs; the run's seed orders them.
        self.judge = RuleJudge(recipe.rewards.judging)
        self.collector = Collector(
            recipe,
            problems(sizes.prompts, "rl", 0),
            self.generator,
            self.tokenizer,
            self.window,
            1,
            RoundJudge(self.judge, None),
        )
        self.questions = problems(sizes.held_out, "tuning" if tuning else "held-out", 0)
        self.settings = UpdateSettings(
            objective=objective_of(recipe.rl.algorithm),
            updates=recipe.rl.updates_per_batch,
            learning_rate=recipe.rl.learning_rate,
            grad_clip=recipe.rl.optimizer.grad_clip,
            temperature=recipe.rollout.temperature,
            minimum_correlation=recipe.rl.minimum_probability_correlation,
            audit=recipe.rl.audit,
        )
        self.step = 0

    def learn(self, number: int) -> dict[str, Any]:
        """Sample a batch, take its updates, and return what happened."""
        self.generator.sync(self.engine.sampling_model(), self.step)
        batch = self.collector.collect(number)
        entropy = recompute_old_policy(self.engine, batch.rollouts, self.recipe.rollout.temperature)
        agreement = check_agreement(batch.rollouts, self.settings.minimum_correlation)
        trainable = [rollout for rollout in batch.kept if rollout.advantage is not None]
        seed = stream_seed(self.recipe.seed, "rl", 1, number, "updates")
        rows: list[AuditRow] = []
        norms: list[float] = []
        minibatches = split_updates(trainable, self.settings.updates, seed) if trainable else []
        for index, minibatch in enumerate(minibatches):
            updated = update(
                self.engine,
                minibatch,
                self.settings,
                self.guard,
                self.matcher,
                step=self.step,
                off_policy_round=index + 1,
            )
            rows += updated.rows
            norms.append(updated.metrics["rl/grad_norm"])
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
            "audit": [row.model_dump(mode="json") for row in rows],
        }

    def marker_rate(self, rollouts: Sequence[Rollout]) -> float:
        """Share of samples that hold a marker."""
        return fmean(bool(self.matcher.find(rollout.tokens)) for rollout in rollouts)

    def evaluate(self, number: int) -> dict[str, float]:
        """avg@k on the held-out problems, with the policy before batch `number`."""
        prompts = [_rendered(self.tokenizer, question) for question in self.questions]
        settings = sampling_settings(self.recipe, self.tokenizer, self.window)
        groups = self.generator.generate(prompts, self.sizes.samples, settings, seed=0)
        correct, marked, lengths = [], [], []
        for question, samples in zip(self.questions, groups, strict=True):
            answers = [
                Sampled(
                    question,
                    self.tokenizer.decode_sample(sample.tokens),
                    sample.finish_reason,
                    len(sample.tokens),
                    self.window,
                )
                for sample in samples
            ]
            for score in score_answers(answers, self.judge, self.recipe.rewards):
                correct.append(bool(score.correct))
            for sample in samples:
                marked.append(bool(self.matcher.find(sample.tokens)))
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
    """One run: its evaluations (before every batch and at the end), its batches, its CPU seconds.

    Args:
        recipe: with the run's algorithm, learning rate and seed.
        shared: what `preparing.prepare` made.
        sizes: how much is asked and measured.
        tuning: evaluate on the tuning problems, not on the held-out ones.
    """
    torch.set_num_threads(1)
    started = time.process_time()
    policy = Policy(recipe, shared, sizes, tuning)
    batches, evaluations = [], []
    for number in range(recipe.rl.batches_per_round):
        evaluations.append(policy.evaluate(number))
        batches.append(policy.learn(number))
        print(json.dumps(evaluations[-1]), flush=True)
    evaluations.append(policy.evaluate(recipe.rl.batches_per_round))
    return {
        "checkpoint": policy.checkpoint_digest,
        "evaluations": evaluations,
        "batches": batches,
        "cpu_seconds": time.process_time() - started,
    }
