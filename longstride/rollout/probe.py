"""The check after every weight update: sampler and trainer must agree on one fixed sequence.

A sampler that keeps old weights, or a part of them, still answers fluently: nothing but a
comparison of log-probabilities notices. vLLM's in-place reload is known to leave tied output heads
and, in some builds, whole models stale without an error.

Legend: N tokens of the probe.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs

PROMPT_TOKENS = 192
CONTINUATION_TOKENS = 16
TEMPERATURE = 0.7
"""Of the sampled continuation; not 1, so that log-probabilities before temperature show."""
SEED = 20_250_613
_STALE_RATIO = 0.5
_ROUNDING = 1e-6
"""Root mean square in nats below which differences of fp32 log-probabilities mean nothing."""


@dataclass(frozen=True)
class Scored:
    """What the sampler says about the probe."""

    prompt: list[float]
    """Log-probability of each fixed token given those before it, from the second on."""
    continuation: list[int]
    """Tokens that it sampled behind the fixed ones."""
    continuation_logprobs: list[float]
    """Their log-probabilities, tempered."""


class Probe:
    """A fixed sequence, the tolerance, and what the trainer said about it the last time."""

    def __init__(self, vocab_size: int, longest: int, tolerance: float) -> None:
        """Choose the sequence.

        Args:
            vocab_size: token ids are drawn uniformly below it, equal in every run.
            longest: tokens of prompt and answer that the sampler accepts.
            tolerance: largest difference of a log-probability, in nats.
        """
        length = min(PROMPT_TOKENS, max(2, longest - CONTINUATION_TOKENS))
        self.new_tokens = min(CONTINUATION_TOKENS, longest - length)
        draw = random.Random(SEED)
        self.tokens = [draw.randrange(vocab_size) for _ in range(length)]
        self.tolerance = tolerance
        self._previous: tuple[int, Tensor] | None = None

    def check(self, model: HybridModel, version: int, scored: Scored) -> float:
        """Compare; return the largest difference in nats.

        Raises:
            CheckpointError: A difference exceeds the tolerance, the sampler still answers with the
                version before, or the trainer's own values are not finite.
        """
        prompt_N = self._trainer(model, self.tokens, 1.0)
        all_tokens = self.tokens + scored.continuation
        tempered_N = self._trainer(model, all_tokens, TEMPERATURE)[len(self.tokens) - 1 :]
        trainer_N = torch.cat([prompt_N, tempered_N])
        if not bool(torch.isfinite(trainer_N).all()):
            raise CheckpointError(
                f"version {version} of the policy gives log-probabilities that are not finite; its "
                "weights have diverged or are corrupt: generate from an earlier checkpoint"
            )
        sampler_N = torch.tensor(scored.prompt + scored.continuation_logprobs)
        self._refuse_stale(sampler_N[: len(prompt_N)], prompt_N, version)
        difference_N = (sampler_N - trainer_N).abs()
        # A NaN of the sampler compares false with everything; it must not pass.
        worst = int(torch.nan_to_num(difference_N, nan=torch.inf).argmax())
        if not float(difference_N[worst]) <= self.tolerance:
            raise CheckpointError(
                f"after the update to version {version} sampler and trainer disagree: at position "
                f"{worst + 1} of the probe (token {all_tokens[worst + 1]}) the sampler's "
                f"log-probability is {float(sampler_N[worst]):.6f}, the trainer's "
                f"{float(trainer_N[worst]):.6f}; that differs by more than probe_tolerance="
                f"{self.tolerance:g}. The sampler does not hold the trainer's weights (vLLM, for "
                "one, reloads tied embeddings wrongly), or it computes in another precision: only "
                "then raise rollout.generator.probe_tolerance"
            )
        self._previous = (version, prompt_N)
        return float(difference_N[worst])

    def _refuse_stale(self, sampler_N: Tensor, trainer_N: Tensor, version: int) -> None:
        """Notice old weights even where an update moved them by less than the tolerance.

        Rounding of the sampler is as far from the old values as from the new ones; old weights are
        much nearer to the old ones.
        """
        if self._previous is None:
            return
        before, previous_N = self._previous
        to_old = float((sampler_N - previous_N).norm())
        to_new = float((sampler_N - trainer_N).norm())
        rounding = _ROUNDING * len(sampler_N) ** 0.5
        if to_new > rounding and to_old < _STALE_RATIO * to_new:
            raise CheckpointError(
                f"after the update to version {version} the sampler still answers with version "
                f"{before}: over {len(sampler_N)} tokens of the probe its log-probabilities are "
                f"{to_old:.3g} from the old policy and {to_new:.3g} from the new one; its weight "
                "reload had no effect"
            )

    @torch.inference_mode()
    def _trainer(self, model: HybridModel, tokens: Sequence[int], temperature: float) -> Tensor:
        row_1N = torch.tensor([list(tokens)], device=model.embed.weight.device)
        hidden = model(row_1N).hidden_BTD
        logp_1N, _ = token_logprobs(model, hidden[:, :-1], row_1N[:, 1:], temperature)
        return logp_1N[0].cpu()
