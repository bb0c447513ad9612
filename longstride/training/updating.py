"""Phases of an RL update: recompute the old policy, then many off-policy steps on one batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from longstride.errors import CheckpointError
from longstride.model.hybrid import HybridModel
from longstride.rl.audits import Agreement, sampler_agreement, weight_statistics
from longstride.rl.objectives import Objective, policy_loss, sequence_coefficients
from longstride.training.engine import Engine
from longstride.training.sequences import (
    microbatches,
    pad_sequences,
    sequence_logprobs,
    spread_over_responses,
)
from schemas.rows import Rollout

MICROBATCH_TOKENS = 4096


@dataclass(frozen=True)
class UpdateSettings:
    """What all updates of a round share."""

    objective: Objective
    updates: int
    learning_rate: float
    grad_clip: float
    temperature: float
    minimum_correlation: float


@torch.no_grad()
def recompute_old_policy(
    model: HybridModel, rollouts: Sequence[Rollout], temperature: float
) -> float:
    """Fill `trainer_logprobs` of every rollout; return the mean entropy (nats a token).

    Raises:
        CheckpointError: The policy's log-probabilities are not finite.
    """
    entropy, tokens = 0.0, 0
    for piece in microbatches(rollouts, MICROBATCH_TOKENS):
        sequences = pad_sequences(piece)
        logp_BT, entropy_BT, _ = sequence_logprobs(model, sequences, temperature)
        if not bool(torch.isfinite(logp_BT[sequences.response_BT]).all()):
            raise CheckpointError(
                "the policy gives log-probabilities that are not finite for its own samples: its "
                "weights are damaged; go back to the checkpoint before this round"
            )
        for row, rollout in enumerate(piece):
            rollout.trainer_logprobs = logp_BT[row, sequences.response_BT[row]].tolist()
        entropy += float(entropy_BT[sequences.response_BT].sum())
        tokens += int(sequences.response_BT.sum())
    return entropy / max(1, tokens)


def check_agreement(rollouts: Sequence[Rollout], minimum: float) -> Agreement:
    """Compare sampler and trainer on every sampled token.

    Raises:
        CheckpointError: Their probabilities correlate less than the recipe allows.
    """
    sampler = [v if v is not None else float("nan") for r in rollouts for v in r.logprobs]
    trainer = [value for rollout in rollouts for value in rollout.trainer_logprobs]
    agreement = sampler_agreement(torch.tensor(sampler), torch.tensor(trainer))
    if agreement.correlation < minimum:
        raise CheckpointError(
            f"sampler and trainer probabilities correlate {agreement.correlation:.4f}, below "
            f"minimum_probability_correlation={minimum}; they do not run the same model: check the "
            "weight sync, the precision of the head, and the temperature"
        )
    return agreement


def split_updates(rollouts: Sequence[Rollout], updates: int, seed: int) -> list[list[Rollout]]:
    """Split sequences at random into minibatches whose sizes differ by at most one."""
    order = list(rollouts)
    random.Random(seed).shuffle(order)
    count = min(updates, len(order))
    return [order[start::count] for start in range(count)]


def update(
    engine: Engine, minibatch: Sequence[Rollout], settings: UpdateSettings
) -> dict[str, float]:
    """One optimizer step on a minibatch; records each token's importance weight on its rollout."""
    lengths = [len(rollout.tokens) for rollout in minibatch]
    coefficients = dict(
        zip(
            (id(rollout) for rollout in minibatch),
            sequence_coefficients(
                lengths, [r.group for r in minibatch], settings.objective.aggregation
            ),
            strict=True,
        )
    )
    loss_value, ratios, advantages = 0.0, [], []
    for piece in microbatches(minibatch, MICROBATCH_TOKENS):
        sequences = pad_sequences(piece)
        logp_BT, _, aux = sequence_logprobs(engine.model, sequences, settings.temperature)
        advantage_B = torch.tensor([_advantage(rollout) for rollout in piece])
        result = policy_loss(
            settings.objective,
            logp_BT,
            spread_over_responses(_anchors(piece, settings.objective), sequences.response_BT),
            advantage_B,
            sequences.response_BT,
            torch.tensor([coefficients[id(rollout)] for rollout in piece]),
        )
        share = len(piece) / len(minibatch)
        engine.backward(result.loss + engine.model.config.router_aux_loss_coef * share * aux)
        loss_value += float(result.loss.detach())
        for row, rollout in enumerate(piece):
            ratio_N = result.ratio_BT[row, sequences.response_BT[row]]
            rollout.importance_weights = ratio_N.tolist()
            ratios.append(ratio_N)
            advantages.append(advantage_B[row].expand_as(ratio_N))
    norm = engine.step(settings.learning_rate, settings.grad_clip)
    statistics = weight_statistics(
        torch.cat(ratios), torch.cat(advantages), settings.objective.weight_cap
    )
    return {
        "rl/loss": loss_value,
        "rl/grad_norm": norm,
        "rl/skipped_steps": engine.skipped_steps,
        **{f"rl/is_weight/{name}": value for name, value in statistics.items()},
    }


def _advantage(rollout: Rollout) -> float:
    if rollout.advantage is None:
        raise ValueError(f"rollout {rollout.prompt_id}/{rollout.sample} has no advantage")
    return rollout.advantage


def _anchors(rollouts: Sequence[Rollout], objective: Objective) -> list[Sequence[float | None]]:
    if objective.anchor == "rollout":
        return [rollout.logprobs for rollout in rollouts]
    return [rollout.trainer_logprobs for rollout in rollouts]
