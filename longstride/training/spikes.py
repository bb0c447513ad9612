"""Spike watch: is a training step healthy, and if not, what is to be done?

Pure decisions on numbers; `longstride.training.rollback` carries them out. Loss and logarithm of
the gradient norm are each compared with the running median of the last good steps, in robust
standard deviations (1.4826 x median absolute difference of neighbours / sqrt 2). A level that falls
or wanders slowly moves the median along; a jump does not, since spikes never enter the history.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal

from schemas.stages import SpikeConfig

Action = Literal["ok", "skip", "back_off", "give_up"]

_SIGMAS_PER_MAD = 1.4826
"""For a normal distribution."""
_MEMORY = 4
"""Verdicts kept, in units of the patience."""
_TINY = 1e-30
"""Below any gradient norm, so that the logarithm of an exact zero exists."""


@dataclass(frozen=True)
class Decision:
    """What to do with the step just judged."""

    action: Action
    """`ok`: apply the update. `skip`: leave it out. `back_off`: leave it out and roll back to the
    last good state. `give_up`: the stage has failed."""
    reason: str = ""
    """What was wrong, in a sentence; empty when `ok`."""


class SpikeWatch:
    """Judges one step after the other; the same numbers give the same decisions.

    Args:
        config: thresholds.
        reference_loss: loss before the first step (nats a token); until there is enough history, a
            loss `loss_jump` above it counts as a spike. None: only finiteness is judged then.
    """

    def __init__(self, config: SpikeConfig, reference_loss: float | None = None) -> None:
        self.config = config
        self.spikes = 0
        self.back_offs = 0
        self._reference = reference_loss
        self._losses: deque[float] = deque(maxlen=config.history)
        self._norms: deque[float] = deque(maxlen=config.history)
        self._marked: tuple[list[float], list[float]] = ([], [])
        self._verdicts: deque[bool] = deque(maxlen=_MEMORY * config.patience)
        self._held = 0

    @property
    def learning_rate_scale(self) -> float:
        """Factor on the learning rate of the next step, in (0, 1]."""
        return self.config.factor**self.back_offs if self._held else 1.0

    @property
    def calm(self) -> bool:
        """Whether no spike is in recent memory: only such a state is worth going back to."""
        return not any(self._verdicts)

    def mark(self) -> None:
        """Remember the history that belongs to a snapshot; a back-off returns to it."""
        self._marked = (list(self._losses), list(self._norms))

    def judge(self, loss: float, norm: float) -> Decision:
        """Decide about the step with this mean loss (nats) and gradient norm before clipping."""
        if not self.config.enabled:
            return Decision("ok")
        reason = self._what_is_wrong(loss, norm)
        self._verdicts.append(bool(reason))
        self._held = max(0, self._held - 1)
        if not reason:
            self._losses.append(loss)
            self._norms.append(_log(norm))
            return Decision("ok")
        self.spikes += 1
        if sum(self._verdicts) < self.config.patience:
            return Decision("skip", reason)
        if self.back_offs >= self.config.max_back_offs:
            return Decision("give_up", f"{reason}, after {self.back_offs} back-offs")
        return self._back_off(reason)

    def _back_off(self, reason: str) -> Decision:
        self.back_offs += 1
        self._held = self.config.hold_steps * 2 ** (self.back_offs - 1)
        self._verdicts.clear()
        for history, marked in zip((self._losses, self._norms), self._marked, strict=True):
            history.clear()
            history.extend(marked)
        return Decision("back_off", reason)

    def _what_is_wrong(self, loss: float, norm: float) -> str:
        config = self.config
        if not math.isfinite(loss):
            return f"the loss is {loss}"
        if not math.isfinite(norm):
            return f"the gradient norm is {norm}"
        if len(self._losses) < config.warmup_steps:
            if self._reference is not None and loss > self._reference + config.loss_jump:
                return f"the loss {loss:.3g} is far above {self._reference:.3g} before the stage"
            return ""
        level = self._level_if_far_above(self._losses, loss, config.loss_jump)
        if level is not None:
            return f"the loss {loss:.3g} is far above its median {level:.3g}"
        level = self._level_if_far_above(self._norms, _log(norm), math.log(config.norm_ratio))
        if level is not None:
            return f"the gradient norm {norm:.3g} is far above its median {math.exp(level):.3g}"
        return ""

    def _level_if_far_above(
        self, history: Sequence[float], value: float, margin: float
    ) -> float | None:
        """The level of the history if `value` exceeds it by both margins, else None.

        The level is the lower of the medians of the whole history and of its recent part: while the
        values fall the long median lags above them, while they creep up the short one follows. The
        deviation comes from successive differences, so that a trend does not count as spread.
        """
        known = list(history)
        if value - min(known) <= margin:
            return None
        recent = known[-self.config.warmup_steps :]
        level = min(statistics.median(known), statistics.median(recent))
        moves = [abs(later - earlier) for earlier, later in pairwise(known)]
        sigma = _SIGMAS_PER_MAD * statistics.median(moves) / math.sqrt(2.0)
        return level if value - level > max(margin, self.config.deviations * sigma) else None

    def state(self) -> dict[str, Any]:
        """Everything that later decisions depend on, as JSON values."""
        return {
            "reference_loss": self._reference,
            "losses": list(self._losses),
            "norms": list(self._norms),
            "marked_losses": list(self._marked[0]),
            "marked_norms": list(self._marked[1]),
            "verdicts": list(self._verdicts),
            "held": self._held,
            "spikes": self.spikes,
            "back_offs": self.back_offs,
        }

    def load_state(self, state: dict[str, Any]) -> None:
        """Restore what `state` returned."""
        self._reference = state["reference_loss"]
        _refill(self._losses, state["losses"])
        _refill(self._norms, state["norms"])
        _refill(self._verdicts, state["verdicts"])
        self._marked = (list(state["marked_losses"]), list(state["marked_norms"]))
        self._held, self.spikes = int(state["held"]), int(state["spikes"])
        self.back_offs = int(state["back_offs"])


def _log(norm: float) -> float:
    return math.log(max(norm, _TINY))


def _refill(target: deque[Any], values: Iterable[Any]) -> None:
    target.clear()
    target.extend(values)
