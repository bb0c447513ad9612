"""The loop of next-token training: one object that holds everything a resumed task needs.

Dimension suffixes: B = rows of a microbatch, T = window.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from longstride.errors import RecipeError
from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs
from longstride.store.progress import Progress
from longstride.training import resuming
from longstride.training.engine import Engine
from longstride.training.packed import PackedRows, RowCursor
from longstride.training.resuming import InProgress, Position
from longstride.training.safety import WatchedSteps, finite
from longstride.training.schedules import Schedule
from schemas.stages import OptimizerConfig, SpikeConfig

SPIKES = "spikes"
"""Name of the watch among the observers of a checkpoint."""
TAIL_SHARE = 0.1
"""The loss of a stage is the mean over this last share of its steps."""

Log = Callable[[int, Mapping[str, float]], None]


@dataclass(frozen=True)
class Plan:
    """What one stage does with its rows."""

    rows_per_step: int
    steps: int
    rate: Schedule
    optimizer: OptimizerConfig
    rope_base: float | None = None
    spikes: SpikeConfig = field(default_factory=SpikeConfig)


@dataclass(frozen=True)
class Place:
    """Where the loop keeps what a resumed task needs."""

    directory: Path
    key: dict[str, str]
    metrics: Path


@dataclass
class Loop:
    """State of a running stage; `Position` and the row cursor are what a checkpoint holds of it."""

    engine: Engine
    rows: PackedRows
    plan: Plan
    cursor: RowCursor
    log: Log
    place: Place
    position: Position = field(default_factory=lambda: Position(step=0))
    steps: WatchedSteps = field(init=False)

    def __post_init__(self) -> None:
        self.steps = WatchedSteps(
            self.engine, self.plan.spikes, self.position.validation_before or None
        )

    def restore(self, found: InProgress) -> None:
        """Go on where a checkpoint was taken; the engine was built from its weights already."""
        self.position = found.position
        self.engine.guard.skipped = found.position.skipped_steps
        self.engine.guard.in_a_row = found.position.bad_steps_in_a_row
        self.engine.load_optimizer_state(found.optimizer_state())
        tensors = found.cursor()
        torch.set_rng_state(tensors["torch_rng"])
        self.cursor.load_state(tensors)
        self.steps.load_state(found.position.observers[SPIKES])

    def run(self) -> float:
        """Take all steps that are left; return the mean loss over the last tenth."""
        first = self.engine.ranks.first
        progress = Progress(self.plan.steps, "steps") if first else None
        every = self.engine.config.checkpoint_every_steps
        due = False
        while self.position.step < self.plan.steps:
            loss = self.advance()
            if progress is not None:
                progress.update(self.position.step, f"loss {loss:.3f}")
            due = due or bool(every and self.position.step % every == 0)
            # The state amid spikes may be the one that causes them.
            if due and self.steps.calm and self.position.step < self.plan.steps:
                self.save()
                due = False
        return sum(self.position.tail) / max(1, len(self.position.tail))

    def advance(self) -> float:
        """Take one step and return its loss (nats a token)."""
        step = self.position.step
        loss = accumulate(self.engine, self.rows.take(self.cursor.next()))
        rate, clip = self.plan.rate(step), self.plan.optimizer.grad_clip
        decision = self.steps.take(step, loss, rate, clip)
        self.log(
            step,
            {
                **finite({"train/loss": loss, "train/grad_norm": self.steps.norm}),
                "train/learning_rate": self.steps.learning_rate,
                "train/skipped_steps": self.engine.skipped_steps,
                **self.steps.metrics(),
            },
        )
        if step >= self.plan.steps * (1 - TAIL_SHARE) and decision.action == "ok":
            self.position.tail.append(loss)
        self.position.step = step + 1
        return loss

    def save(self) -> None:
        """Publish an in-progress checkpoint, also the state that the watch then goes back to."""
        self.steps.keep_state()
        self.position.observers[SPIKES] = self.steps.state()
        self.position.skipped_steps = self.engine.guard.skipped
        self.position.bad_steps_in_a_row = self.engine.guard.in_a_row
        resuming.save(
            self.place.directory,
            self.place.key,
            self.position,
            self.engine,
            self.cursor.state(),
            self.place.metrics,
        )


def accumulate(engine: Engine, batch: PackedRows) -> float:
    """Accumulate the gradient of a step over microbatches and ranks; return its mean loss.

    The mean runs over all target tokens of the step, so neither the cut into microbatches nor the
    number of ranks matters. The load-balancing loss is that of each microbatch, weighted by its
    share of the step's rows: it depends on the cut a little, and not on the ranks.
    """
    targets = int(batch.loss_mask_NT[:, 1:].sum())
    if targets == 0:
        raise RecipeError("a step has no target tokens; raise rows_per_step or check the loss mask")
    total = 0.0
    for part, weight in engine.ranks.share(batch.microbatches(engine.config.microbatch_tokens)):
        loss, aux = engine.forward(_Losses(part))
        share = part.rows / batch.rows
        whole = loss / targets + engine.model.config.router_aux_loss_coef * share * aux
        engine.backward(weight * whole)
        total += weight * float(loss.detach())
    return engine.ranks.total([total])[0] / targets


@dataclass(frozen=True)
class _Losses:
    """Summed negative log-likelihood of a part's targets, and the load-balancing loss."""

    part: PackedRows

    def __call__(self, model: HybridModel) -> tuple[Tensor, Tensor]:
        part = self.part.to(model.embed.weight.device)
        output = model(part.tokens_NT, part.segments_NT, part.positions_NT)
        logp_BT, _ = token_logprobs(model, output.hidden_BTD[:, :-1], part.tokens_NT[:, 1:])
        mask_BT = part.loss_mask_NT[:, 1:]
        return -torch.where(mask_BT, logp_BT, 0.0).sum(), output.aux_loss


@torch.no_grad()
def evaluate(engine: Engine, rows: PackedRows) -> float:
    """Mean negative log-likelihood a target token (nats); 0 when there are no rows."""
    total, targets = 0.0, 0.0
    parts = rows.microbatches(engine.config.microbatch_tokens) if rows.rows else ()
    for part, weight in engine.ranks.share(parts):
        loss, _ = engine.forward(_Losses(part))
        total += weight * float(loss)
        targets += weight * float(part.loss_mask_NT[:, 1:].sum())
    total, targets = engine.ranks.total([total, targets])
    return total / max(1.0, targets)
