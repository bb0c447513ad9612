"""Optimizer steps under the eyes of a spike watch, with the way back when it asks for one."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from longstride.errors import TrainingDiverged
from longstride.training.engine import Engine
from longstride.training.snapshots import Snapshot
from longstride.training.spikes import Decision, SpikeWatch
from schemas.stages import SpikeConfig


class WatchedSteps:
    """Takes the optimizer steps of a stage: all healthy ones, none of the others.

    Every `snapshot_steps` healthy steps it copies weights and optimizer state to host memory, just
    *before* an update, when the loss of these very weights has been found healthy. A back-off goes
    back to that copy at a lower learning rate, and on with the rows that come next: those that made
    the spike are not seen again.
    """

    def __init__(self, engine: Engine, config: SpikeConfig, reference_loss: float | None) -> None:
        known = reference_loss is not None and math.isfinite(reference_loss)
        self.watch = SpikeWatch(config, reference_loss if known else None)
        self._engine = engine
        self.norm = self.learning_rate = 0.0
        self._snapshot: Snapshot | None = None
        self._age = 0

    @property
    def calm(self) -> bool:
        """Whether the present state is worth saving; always so without a watch."""
        return self.watch.calm

    def keep_state(self) -> None:
        """Make the present state the one to go back to."""
        if self.watch.config.enabled:
            self._snapshot = self._engine.snapshot()
            self.watch.mark()
            self._age = 0

    def take(self, step: int, loss: float, learning_rate: float, grad_clip: float) -> Decision:
        """Take one step, or leave it out, or go back; the engine holds its gradients.

        Raises:
            TrainingDiverged: The stage spiked again after its last back-off.
            CheckpointError: Without a watch, gradients were not finite too often in a row.
        """
        if not self.watch.config.enabled:
            self.norm = self._engine.step(learning_rate, grad_clip)
            self.learning_rate = learning_rate
            return Decision("ok")
        if self._snapshot is None:
            self.keep_state()
        decision = Decision("ok")

        def accept(norm: float) -> bool:
            nonlocal decision
            decision = self.watch.judge(loss, norm)
            healthy = decision.action == "ok"
            self._age += healthy
            if healthy and self.watch.calm and self._age >= self.watch.config.snapshot_steps:
                self.keep_state()
            return healthy

        self.learning_rate = learning_rate * self.watch.learning_rate_scale
        self.norm = self._engine.step(self.learning_rate, grad_clip, accept)
        if decision.action != "ok":
            self._report(step, decision)
        if decision.action == "back_off":
            assert self._snapshot is not None
            self._engine.restore(self._snapshot)
            self._age = 0
        if decision.action == "give_up":
            raise TrainingDiverged(
                f"step {step}: {decision.reason}; lower the stage's learning_rate, make its window "
                "or rope_base grow in smaller steps, or check its data (spikes.max_back_offs="
                f"{self.watch.config.max_back_offs} were not enough)"
            )
        return decision

    def _report(self, step: int, decision: Decision) -> None:
        if self._engine.ranks.first:
            done = "left out"
            if decision.action == "back_off":
                done = f"back to the last good state, rate x {self.watch.learning_rate_scale:g}"
            print(f"step {step}: {decision.reason}: {done}")

    def metrics(self) -> dict[str, float]:
        """Counters and the factor on the learning rate of the next step, for the log."""
        if not self.watch.config.enabled:
            return {}
        return {
            "train/spikes": self.watch.spikes,
            "train/back_offs": self.watch.back_offs,
            "train/learning_rate_scale": self.watch.learning_rate_scale,
        }

    def counts(self) -> dict[str, float]:
        """Spikes and back-offs of the whole stage, for its record."""
        if not self.watch.config.enabled:
            return {}
        return {"spikes": self.watch.spikes, "back_offs": self.watch.back_offs}

    def state(self) -> dict[str, Any]:
        """JSON state for an in-progress checkpoint, taken right after `keep_state`."""
        return self.watch.state()

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Go on where `state` was taken; the engine is in that state already."""
        self.watch.load_state(dict(state))
        self.keep_state()


def finite(values: Mapping[str, float]) -> dict[str, float]:
    """The values that are finite: a metric that does not exist is left out of the log."""
    return {name: value for name, value in values.items() if math.isfinite(value)}
