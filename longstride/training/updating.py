"""Phases of an RL update: recompute the old policy, then many off-policy steps on one batch."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch
from torch import Tensor

from longstride.errors import CheckpointError
from longstride.rl.audits import (
    Agreement,
    UpdateTokens,
    bucket_rows,
    bucket_shares,
    gradient_shares,
    sampler_agreement,
    weight_statistics,
)
from longstride.rl.objectives import Objective, policy_loss, sequence_coefficients
from longstride.rl.reflection import ReflectionMatcher
from longstride.training.engine import Engine
from longstride.training.guarding import UpdateGuard, nonfinite_gradient, source_of_nonfinite
from longstride.training.sequences import (
    SequenceLogprobs,
    Sequences,
    microbatches,
    pad_sequences,
    spread_over_responses,
)
from schemas.audit import AuditConfig, AuditRow
from schemas.rows import Rollout

Found = TypeVar("Found")


@dataclass(frozen=True)
class UpdateSettings:
    """What all updates of a round share."""

    objective: Objective
    updates: int
    learning_rate: float
    grad_clip: float
    temperature: float
    minimum_correlation: float
    audit: AuditConfig = field(default_factory=AuditConfig)


@dataclass(frozen=True)
class Updated:
    """What one update did: its metrics, and the audit's sums by reflection bucket."""

    metrics: dict[str, float]
    rows: list[AuditRow]


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


def _of_all_ranks(engine: Engine, own: dict[int, Found]) -> dict[int, Found]:
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
    engine: Engine,
    minibatch: Sequence[Rollout],
    settings: UpdateSettings,
    guard: UpdateGuard,
    matcher: ReflectionMatcher,
    *,
    step: int = 0,
    off_policy_round: int = 1,
) -> Updated:
    """One optimizer step on a minibatch; records each token's importance weight on its rollout.

    Collective: every rank has the whole minibatch and works on its share of it. When something is
    not finite, nothing changes and the guard is told.

    Raises:
        CheckpointError: The guard has seen too many bad updates in a row.
    """
    passed = _accumulate(engine, minibatch, settings)
    culprit = passed.culprit

    def accept(norm: float) -> bool:
        nonlocal culprit
        if culprit is None and not math.isfinite(norm):
            culprit = nonfinite_gradient(engine.model)
        return culprit is None

    norm = engine.step(settings.learning_rate, settings.grad_clip, accept)
    if culprit is not None:
        guard.bad(step, culprit, minibatch)
        return Updated({"rl/skipped_steps": guard.skipped}, [])
    guard.good()
    for place, (ratios, _, _) in passed.values.items():
        minibatch[place].importance_weights = ratios
    metrics = {
        "rl/loss": passed.loss,
        "rl/grad_norm": norm,
        "rl/skipped_steps": guard.skipped,
        "rl/update_entropy": passed.entropy,
    }
    tokens = _tokens(minibatch, passed, matcher)
    cap = settings.objective.weight_cap
    rows = bucket_rows(
        tokens, matcher.names, settings.audit, cap, minibatch[0].batch, off_policy_round
    )
    for prefix, values in (
        ("rl/is_weight", weight_statistics(tokens, cap)),
        ("rl/gradient_share", gradient_shares(tokens)),
        ("rl/audit", bucket_shares(rows)),
    ):
        metrics |= {f"{prefix}/{name}": value for name, value in values.items()}
    return Updated(metrics, rows)


@dataclass(frozen=True)
class _Passed:
    """What forward and backward passes over a minibatch gave, the same on every rank."""

    loss: float
    entropy: float
    coefficients: list[float]
    values: dict[int, tuple[list[float], list[float], list[float]]]
    """By place in the minibatch: ratio, weight and log-probability of each response token."""
    culprit: str | None


def _accumulate(engine: Engine, minibatch: Sequence[Rollout], settings: UpdateSettings) -> _Passed:
    """Add up the gradient of a minibatch over microbatches and ranks."""
    coefficients = sequence_coefficients(
        [len(rollout.tokens) for rollout in minibatch],
        [rollout.group for rollout in minibatch],
        settings.objective.aggregation,
        settings.objective.sample_share,
    )
    places = {id(rollout): place for place, rollout in enumerate(minibatch)}
    loss = entropy = 0.0
    culprit: str | None = None
    found: dict[int, tuple[list[float], list[float], list[float]]] = {}
    pieces = microbatches(minibatch, engine.config.microbatch_tokens)
    for piece, weight in engine.ranks.share(pieces):
        sequences = pad_sequences(piece)
        forward = SequenceLogprobs(sequences, settings.temperature)
        logp_BT, entropy_BT, aux = engine.forward(forward)
        own = [coefficients[places[id(rollout)]] for rollout in piece]
        result = policy_loss(
            settings.objective, logp_BT, *_policy_inputs(piece, own, sequences, logp_BT.device)
        )
        share = len(piece) / len(minibatch)
        whole = result.loss + engine.model.config.router_aux_loss_coef * share * aux
        engine.backward(weight * whole)
        response_BT = sequences.response_BT
        loss += weight * float(result.loss.detach())
        entropy += weight * float(entropy_BT.detach().cpu()[response_BT].sum())
        detached = [t.detach().cpu() for t in (result.ratio_BT, result.weight_BT, logp_BT)]
        if culprit is None and not bool(torch.isfinite(detached[2][response_BT]).all()):
            culprit = source_of_nonfinite(engine, forward)
        if culprit is None and not bool(torch.isfinite(result.loss.detach())):
            culprit = "loss was"
        for row, rollout in enumerate(piece if weight else ()):
            ratios, weights, logps = (t[row, response_BT[row]].tolist() for t in detached)
            found[places[id(rollout)]] = (ratios, weights, logps)
    sums = engine.ranks.total([loss, entropy])
    culprits = [name for name in engine.ranks.gather(culprit) if name]
    return _Passed(
        sums[0],
        sums[1] / sum(len(rollout.tokens) for rollout in minibatch),
        coefficients,
        _of_all_ranks(engine, found),
        culprits[0] if culprits else None,
    )


def _policy_inputs(
    piece: Sequence[Rollout],
    coefficients: Sequence[float],
    sequences: Sequences,
    device: torch.device,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Old and sampler log-probabilities, advantages, mask and coefficients of a microbatch."""
    response_BT = sequences.response_BT
    old_BT = spread_over_responses([rollout.trainer_logprobs for rollout in piece], response_BT)
    sampler_BT = spread_over_responses([rollout.logprobs for rollout in piece], response_BT)
    advantage_B = torch.tensor([_advantage(rollout) for rollout in piece])
    coefficient_B = torch.tensor(list(coefficients))
    inputs = (old_BT, sampler_BT, advantage_B, response_BT, coefficient_B)
    one, two, three, four, five = (tensor.to(device) for tensor in inputs)
    return one, two, three, four, five


def _tokens(
    minibatch: Sequence[Rollout], passed: _Passed, matcher: ReflectionMatcher
) -> UpdateTokens:
    """Every response token of a minibatch, as the audit wants it."""

    def column(values: Iterable[Iterable[float]], dtype: torch.dtype = torch.float64) -> Tensor:
        return torch.tensor([value for row in values for value in row], dtype=dtype)

    def repeated(values: Iterable[float]) -> Tensor:
        return column([v] * len(r.tokens) for v, r in zip(values, minibatch, strict=True))

    ratios, weights, logps = zip(
        *(passed.values[place] for place in range(len(minibatch))), strict=True
    )
    return UpdateTokens(
        ratio_N=column(ratios),
        weight_N=column(weights),
        advantage_N=repeated(_advantage(rollout) for rollout in minibatch),
        coefficient_N=repeated(passed.coefficients),
        old_logp_N=column(rollout.trainer_logprobs for rollout in minibatch),
        logp_N=column(logps),
        position_N=column(
            [index / len(r.tokens) for index in range(len(r.tokens))] for r in minibatch
        ),
        bucket_N=column((matcher.labels(r.tokens) for r in minibatch), torch.int64),
    )


def _advantage(rollout: Rollout) -> float:
    if rollout.advantage is None:
        raise ValueError(f"rollout {rollout.prompt_id}/{rollout.sample} has no advantage")
    return rollout.advantage
