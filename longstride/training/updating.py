"""Phases of an RL update: recompute the old policy, then many off-policy steps on one batch."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from longstride.errors import CheckpointError
from longstride.rl.audits import Agreement, sampler_agreement, weight_statistics
from longstride.rl.objectives import Objective, policy_loss, sequence_coefficients
from longstride.training.engine import Engine
from longstride.training.sequences import (
    SequenceLogprobs,
    microbatches,
    pad_sequences,
    spread_over_responses,
)
from schemas.rows import Rollout


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
def recompute_old_policy(engine: Engine, rollouts: Sequence[Rollout], temperature: float) -> float:
    """Fill `trainer_logprobs` of every rollout; return the mean entropy (nats a token).

    Collective: every rank has all rollouts and works on its share of them.

    Raises:
        CheckpointError: The policy's log-probabilities are not finite.
    """
    entropy, tokens = 0.0, 0.0
    found: dict[int, list[float]] = {}
    places = {id(rollout): place for place, rollout in enumerate(rollouts)}
    pieces = microbatches(rollouts, engine.config.microbatch_tokens)
    for piece, weight in engine.ranks.share(pieces):
        sequences = pad_sequences(piece)
        logp_BT, entropy_BT, _ = engine.forward(SequenceLogprobs(sequences, temperature))
        if not weight:
            continue
        logp_BT, entropy_BT = logp_BT.cpu(), entropy_BT.cpu()
        if not bool(torch.isfinite(logp_BT[sequences.response_BT]).all()):
            raise CheckpointError(
                "the policy gives log-probabilities that are not finite for its own samples: its "
                "weights are damaged; go back to the checkpoint before this round"
            )
        for row, rollout in enumerate(piece):
            found[places[id(rollout)]] = logp_BT[row, sequences.response_BT[row]].tolist()
        entropy += float(entropy_BT[sequences.response_BT].sum())
        tokens += float(sequences.response_BT.sum())
    for place, values in _of_all_ranks(engine, found).items():
        rollouts[place].trainer_logprobs = values
    entropy, tokens = engine.ranks.total([entropy, tokens])
    return entropy / max(1.0, tokens)


def _of_all_ranks(engine: Engine, own: dict[int, list[float]]) -> dict[int, list[float]]:
    """What all ranks found for the rollouts that they worked on."""
    gathered = engine.ranks.gather(list(own.items()))
    return {place: values for found in gathered for place, values in found}


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
    """One optimizer step on a minibatch; records each token's importance weight on its rollout.

    Collective: every rank has the whole minibatch and works on its share of it.
    """
    lengths = [len(rollout.tokens) for rollout in minibatch]
    coefficients = dict(
        zip(
            (id(rollout) for rollout in minibatch),
            sequence_coefficients(
                lengths,
                [r.group for r in minibatch],
                settings.objective.aggregation,
                settings.objective.sample_share,
            ),
            strict=True,
        )
    )
    loss_value, ratios = 0.0, {}
    places = {id(rollout): place for place, rollout in enumerate(minibatch)}
    pieces = list(microbatches(minibatch, engine.config.microbatch_tokens))
    for piece, weight in engine.ranks.share(pieces):
        sequences = pad_sequences(piece)
        logp_BT, _, aux = engine.forward(SequenceLogprobs(sequences, settings.temperature))
        device = logp_BT.device
        response_BT = sequences.response_BT
        result = policy_loss(
            settings.objective,
            logp_BT,
            spread_over_responses([r.trainer_logprobs for r in piece], response_BT).to(device),
            spread_over_responses([r.logprobs for r in piece], response_BT).to(device),
            torch.tensor([_advantage(rollout) for rollout in piece], device=device),
            response_BT.to(device),
            torch.tensor([coefficients[id(rollout)] for rollout in piece], device=device),
        )
        share = len(piece) / len(minibatch)
        whole = result.loss + engine.model.config.router_aux_loss_coef * share * aux
        engine.backward(weight * whole)
        loss_value += weight * float(result.loss.detach())
        ratio_BT = result.ratio_BT.cpu()
        for row, rollout in enumerate(piece if weight else ()):
            ratios[places[id(rollout)]] = ratio_BT[row, response_BT[row]].tolist()
    norm = engine.step(settings.learning_rate, settings.grad_clip)
    for place, values in _of_all_ranks(engine, ratios).items():
        minibatch[place].importance_weights = values
    statistics = _statistics(pieces, settings)
    return {
        "rl/loss": engine.ranks.total([loss_value])[0],
        "rl/grad_norm": norm,
        "rl/skipped_steps": engine.skipped_steps,
        **{f"rl/is_weight/{name}": value for name, value in statistics.items()},
    }


def _statistics(pieces: Sequence[Sequence[Rollout]], settings: UpdateSettings) -> dict[str, float]:
    """What the importance weights of a minibatch were like."""
    rollouts = [rollout for piece in pieces for rollout in piece]
    ratio_N = torch.tensor([ratio for one in rollouts for ratio in one.importance_weights])
    advantage_N = torch.tensor(
        [_advantage(one) for one in rollouts for _ in one.importance_weights]
    )
    return weight_statistics(ratio_N, advantage_N, settings.objective.weight_cap)


def _advantage(rollout: Rollout) -> float:
    if rollout.advantage is None:
        raise ValueError(f"rollout {rollout.prompt_id}/{rollout.sample} has no advantage")
    return rollout.advantage
