"""The loop of an RL round: collect, judge, select, advantages, update x16, audit, save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Self

import torch
from pydantic import Field
from torch import Tensor

from longstride.errors import CheckpointError, DataError
from longstride.rl.audits import bucket_shares
from longstride.rl.reflection import ReflectionMatcher
from longstride.rollout.protocol import SyncedGenerator
from longstride.store.metrics import MetricsWriter
from longstride.store.progress import Progress
from longstride.store.seeds import stream_seed
from longstride.training import resuming
from longstride.training.batches import BatchStore, State
from longstride.training.collecting import (
    Batch,
    Collector,
    UnusableRewards,
    batch_from_json,
    batch_to_json,
)
from longstride.training.engine import Engine
from longstride.training.guarding import UpdateGuard
from longstride.training.loop import Place
from longstride.training.measuring import batch_metrics, group_metrics
from longstride.training.resuming import InProgress, Position
from longstride.training.updating import (
    UpdateSettings,
    check_agreement,
    recompute_old_policy,
    split_updates,
    update,
)
from schemas.audit import AuditRow
from schemas.base import Contract
from schemas.curriculum import PassHistory
from schemas.recipe import Recipe
from schemas.rows import Rollout

ROUND = "round"
"""Name of the round's own state among the observers of a checkpoint."""


class RoundState(Contract):
    """Where a round stands, apart from tensors, batches and metrics."""

    batch: int = Field(default=0, ge=0)
    """Generation batches finished."""
    update: int = Field(default=0, ge=0)
    """Updates of the present batch that were taken or left out."""
    step: int = Field(default=0, ge=0)
    """The same over all batches of the round."""
    guard: dict[str, int] = Field(default_factory=dict)
    """State of the guard."""
    history: PassHistory = Field(default_factory=PassHistory)
    """How often each prompt was solved, finished batches included."""
    rows: list[AuditRow] = Field(default_factory=list)
    """The audit so far."""

    @classmethod
    def of(cls, found: InProgress) -> Self:
        """The state that a checkpoint holds."""
        return cls.model_validate(found.position.observers[ROUND])


def batches_are_there(found: InProgress, store: BatchStore) -> bool:
    """Whether the store holds every batch that a checkpoint builds on."""
    state = RoundState.of(found)
    learnt = all(store.has(number, "learnt") for number in range(state.batch))
    return learnt and (not state.update or store.has(state.batch, "collected"))


@dataclass
class RoundLoop:
    """A running round; `RoundState`, the batches on disk and a checkpoint are all it needs."""

    recipe: Recipe
    number: int
    window: int
    engine: Engine
    generator: SyncedGenerator
    collector: Collector
    settings: UpdateSettings
    guard: UpdateGuard
    matcher: ReflectionMatcher
    writer: MetricsWriter
    place: Place
    store: BatchStore
    state: RoundState = field(default_factory=RoundState)
    batches: list[Batch] = field(default_factory=list)

    def run(self) -> list[Batch]:
        """Take all batches that are left; return all of the round.

        Raises:
            CheckpointError: Something was not finite too often, or sampler and trainer disagree.
            DataError: No signal was found, and the recipe says to stop then.
        """
        first = self.engine.ranks.first
        total = self.recipe.rl.batches_per_round
        progress = Progress(total, "batches") if first else None
        while (number := self.state.batch) < total:
            batch = self._present() or self._collect(number)
            self._learn(batch, number)
            self._finish(batch, number)
            reward = self.writer.last.get("rl/reward/mean", float("nan"))
            if progress is not None:
                progress.update(number + 1, f"window {self.window}, reward {reward:.3f}")
        return self.batches

    def restore(self, found: InProgress) -> None:
        """Go on where a checkpoint was taken; the engine was built from its weights already.

        Raises:
            CheckpointError: A batch that belongs to it cannot be read.
        """
        self.state = RoundState.of(found)
        wanted: list[tuple[int, State]] = [(n, "learnt") for n in range(self.state.batch)]
        if self.state.update:
            wanted.append((self.state.batch, "collected"))
        for number, state in wanted:
            batch = self._stored(number, state)
            if batch is None:
                raise CheckpointError(
                    f"batch {number} of the in-progress checkpoint {found.directory} cannot be "
                    f"read; delete {self.place.directory} to start the round over"
                )
            self.batches.append(batch)
        tensors = found.cursor()
        if self.batches:
            self.collector.judge.go_on_from(self.batches[-1].judge)
        if self.state.update:
            _put_weights(self.batches[-1].rollouts, tensors)
        self.engine.load_optimizer_state(found.optimizer_state())
        torch.set_rng_state(tensors["torch_rng"])
        self.guard.load_state(self.state.guard)

    def _present(self) -> Batch | None:
        """The batch in whose midst a checkpoint was taken."""
        return self.batches.pop() if len(self.batches) > self.state.batch else None

    def _stored(self, number: int, state: State) -> Batch | None:
        """A batch of the store, on every rank."""
        ranks = self.engine.ranks
        loaded = self.store.load(number, state) if ranks.first else None
        if ranks.count == 1:
            return loaded
        values = ranks.from_first(batch_to_json(loaded) if loaded else None)
        return batch_from_json(values) if values else None

    def _collect(self, number: int) -> Batch:
        """Phases collect to advantages on the first rank, then the old policy on all of them."""
        stored = self._stored(number, "collected")
        if stored is not None:
            self.collector.judge.go_on_from(stored.judge)
            return stored
        ranks, model = self.engine.ranks, self.engine.sampling_model()
        batch = Batch()
        if ranks.first:
            synced = self.generator.sync(model, self.state.step)
            try:
                batch = self.collector.collect(
                    number,
                    self.store.load(number, "begun"),
                    lambda begun: self.store.save(number, "begun", begun),
                )
            except UnusableRewards as error:
                saved = self.guard.save(self.state.step, str(error), error.rollouts)
                raise DataError(f"{error}{saved}") from error
            batch.facts |= self.collector.judge.metrics()
            batch.facts["rollout/sync/seconds"] = synced.seconds
            batch.facts["rollout/sync/probe_difference"] = synced.probe_difference
        if ranks.count > 1:
            batch = batch_from_json(ranks.from_first(batch_to_json(batch)))
        self._compare_with_sampler(batch)
        if ranks.first:
            self.store.save(number, "collected", batch)
            # Samples cost most of a round, so they are copied before the first update.
            resuming.copy_offsite(self.place.directory, self.place.key)
        return batch

    def _compare_with_sampler(self, batch: Batch) -> None:
        """Recompute the old policy, and measure how well it agrees with what was sampled."""
        try:
            entropy = recompute_old_policy(self.engine, batch.rollouts, self.settings.temperature)
            agreement = check_agreement(batch.rollouts, self.settings.minimum_correlation)
        except CheckpointError as error:
            saved = self.guard.save(self.state.step, str(error), batch.rollouts)
            raise CheckpointError(f"{error}{saved}") from error
        batch.facts |= {
            "rl/entropy": entropy,
            "rl/probability_correlation": agreement.correlation,
            "rl/probability_difference/max": agreement.max_difference,
            "rl/probability_difference/mean": agreement.mean_difference,
            "rl/mismatch_kl": agreement.kl_k3,
        }

    def _learn(self, batch: Batch, number: int) -> None:
        """Take the updates of one batch that are left, and record what each did."""
        trained = self._trainable(batch, number)
        if not self.state.update:
            self._log_batch(batch, trained)
        every = self.engine.config.checkpoint_every_steps
        seed = stream_seed(self.recipe.seed, "rl", self.number, number, "updates")
        minibatches = split_updates(trained, self.settings.updates, seed) if trained else []
        for index in range(self.state.update, len(minibatches)):
            updated = update(
                self.engine,
                minibatches[index],
                self.settings,
                self.guard,
                self.matcher,
                step=self.state.step,
                off_policy_round=index + 1,
            )
            self.writer.log(self.state.step, {"rl/off_policy_round": index + 1, **updated.metrics})
            self.state.rows += updated.rows
            self.state.update, self.state.step = index + 1, self.state.step + 1
            if every and self.state.step % every == 0 and index + 1 < len(minibatches):
                self._save(batch)

    def _trainable(self, batch: Batch, number: int) -> list[Rollout]:
        """The rollouts that updates are made of; says why when there are too few or none.

        Raises:
            DataError: The batch is not full, and the recipe says to stop then.
        """
        rl = self.recipe.rl
        trained = [rollout for rollout in batch.kept if rollout.advantage is not None]
        if rl.truncated == "exclude":
            trained = [rollout for rollout in trained if rollout.finish_reason != "length"]
        missing = rl.groups_per_batch - batch.kept_groups
        reasons = ", ".join(f"{n} {why.replace('_', ' ')}" for why, n in batch.dropped_for.items())
        where = f"round {self.number}, batch {number}"
        if missing and rl.exhaustion == "stop":
            raise DataError(
                f"{where}: {batch.kept_groups} of {rl.groups_per_batch} groups carry signal after "
                f"{batch.waves} waves ({reasons}), and rl.exhaustion=stop; curate prompts nearer "
                "to what the policy can half solve, or raise rl.max_refills"
            )
        if missing and rl.exhaustion == "skip":
            trained = []
        if missing and self.engine.ranks.first:
            print(
                f"{where}: {batch.kept_groups} of {rl.groups_per_batch} groups carry signal after "
                f"{batch.waves} waves; without: {reasons or 'none'}"
            )
        if not trained and self.engine.ranks.first:
            print(f"{where}: nothing is learnt from it")
        return trained

    def _log_batch(self, batch: Batch, trained: Sequence[Rollout]) -> None:
        """Curves of a batch; everything but seconds is a function of the batch alone."""
        lag = sum(self.state.step - r.policy_version for r in batch.rollouts)
        self.writer.log(
            self.state.step,
            {
                **batch_metrics(batch.rollouts, self.window),
                **group_metrics(batch, trained),
                **batch.facts,
                "rl/version_lag": lag / len(batch.rollouts),
            },
        )

    def _finish(self, batch: Batch, number: int) -> None:
        """Close a batch: its audit, its place on disk, and a checkpoint before the next one."""
        rows = [row for row in self.state.rows if row.batch == number]
        shares = bucket_shares(rows)
        step = max(0, self.state.step - 1)
        self.writer.log(step, {f"rl/batch_audit/{name}": v for name, v in shares.items()})
        for rollout in batch.rollouts:
            if rollout.correct is not None:
                self.state.history.record(rollout.prompt_id, rollout.correct)
        self.batches.append(batch)
        if self.engine.ranks.first:
            self.store.save(number, "learnt", batch)
        self.state.batch, self.state.update = number + 1, 0
        if self.state.batch < self.recipe.rl.batches_per_round:
            self._save(None)

    def _save(self, present: Batch | None) -> None:
        """Publish an in-progress checkpoint, unless the recipe keeps none. Collective."""
        if not self.engine.config.checkpoint_every_steps:
            return
        self.state.guard = self.guard.state()
        work = self.state.batch * (self.settings.updates + 1) + self.state.update
        resuming.save(
            self.place.directory,
            self.place.key,
            Position(step=work, observers={ROUND: self.state.model_dump(mode="json")}),
            self.engine,
            _weights_of(present.rollouts if present else ()),
            self.place.metrics,
        )


def _weights_of(rollouts: Sequence[Rollout]) -> dict[str, Tensor]:
    """Importance weights of a batch so far, which its file does not hold yet."""
    flat = [weight for rollout in rollouts for weight in rollout.importance_weights]
    return {
        "importance_weights": torch.tensor(flat, dtype=torch.float64),
        "importance_lengths": torch.tensor(
            [len(rollout.importance_weights) for rollout in rollouts], dtype=torch.int64
        ),
    }


def _put_weights(rollouts: Sequence[Rollout], tensors: dict[str, Tensor]) -> None:
    """Put them back."""
    lengths = tensors["importance_lengths"].tolist()
    parts = torch.split(tensors["importance_weights"], lengths)
    for rollout, part in zip(rollouts, parts, strict=True):
        rollout.importance_weights = part.tolist()
