"""One RL round: collect, judge, select, advantages, update x16, audit, save (M1 report, sec. 3)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

from longstride.model.hybrid import HybridModel
from longstride.rl.objectives import objective_of
from longstride.rollout.opening import open_generator
from longstride.rollout.protocol import SyncedGenerator
from longstride.store.artifacts import digest_of_artifact, open_artifact, publish
from longstride.store.files import read_json, read_jsonl, write_json, write_jsonl
from longstride.store.metrics import MetricsWriter
from longstride.store.progress import Progress
from longstride.store.seeds import stream_seed
from longstride.tokens.tokenizer import Tokenizer
from longstride.training.checkpoints import (
    Checkpoint,
    open_checkpoint,
    pass_through,
    publish_checkpoint,
)
from longstride.training.collecting import (
    Batch,
    batch_from_json,
    batch_to_json,
    collect_batch,
)
from longstride.training.engine import Engine
from longstride.training.engines import create_engine, whole_model, whole_optimizer_state
from longstride.training.ladder import LADDER_FILE, ROLLOUTS_FILE, SUMMARY_FILE
from longstride.training.launching import RoundRequest, run_in_ranks
from longstride.training.measuring import batch_metrics, round_facts
from longstride.training.ranks import Ranks
from longstride.training.updating import (
    UpdateSettings,
    check_agreement,
    recompute_old_policy,
    split_updates,
    update,
)
from schemas.ladder import LadderState
from schemas.recipe import Recipe
from schemas.rows import RLPrompt, Rollout


@dataclass(frozen=True)
class RoundPaths:
    """Where a round reads from and writes to."""

    prompts: Path
    tokenizer: Path
    checkpoint: Path
    ladder: Path
    out_checkpoint: Path
    out_rollouts: Path
    metrics: Path


@dataclass
class _Round:
    """State of a running round."""

    recipe: Recipe
    number: int
    window: int
    engine: Engine
    generator: SyncedGenerator
    tokenizer: Tokenizer
    prompts: list[RLPrompt]
    settings: UpdateSettings
    writer: MetricsWriter
    step: int = 0


def run_round(recipe: Recipe, number: int, paths: RoundPaths) -> dict[str, float]:
    """Run round `number` at the ladder's window, or pass the checkpoint through.

    Returns:
        Last values of the metrics; empty when the ladder has ended and nothing was trained.

    Raises:
        DataError: An input cannot be used.
        CheckpointError: The checkpoint is damaged, or sampler and trainer disagree.
        GeneratorError: The recipe's sampling server failed.
        EngineError: A rank process failed for a reason that is not the user's.
    """
    open_artifact(paths.ladder, "ladder_state")
    state = read_json(paths.ladder / LADDER_FILE, LadderState)
    if state.status != "active":
        return _pass_through(paths, recipe, number, state)
    if recipe.engine.kind == "deepspeed":
        request = RoundRequest(recipe=recipe, number=number, **vars(paths))
        return run_in_ranks(request, recipe.engine)
    return run_round_on_ranks(recipe, number, paths, Ranks())


def run_round_on_ranks(
    recipe: Recipe, number: int, paths: RoundPaths, ranks: Ranks
) -> dict[str, float]:
    """The same in this process, one of `ranks.count` that all call it, at an active ladder.

    The first rank samples, judges and writes; all of them train.
    """
    state = read_json(paths.ladder / LADDER_FILE, LadderState)
    checkpoint = open_checkpoint(paths.checkpoint)
    engine = create_engine(checkpoint.model.float(), recipe.rl.optimizer, recipe.engine, ranks)
    if checkpoint.optimizer_state is not None:
        engine.load_optimizer_state(checkpoint.optimizer_state)
    with (
        MetricsWriter(paths.metrics if ranks.first else None) as writer,
        open_generator(recipe, engine.sampling_model(), paths.metrics) as generator,
    ):
        current = _begin(recipe, number, paths, state, engine, generator, writer)
        batches = _run_batches(current)
        final = dict(writer.last)
    trained, optimizer_state = whole_model(engine), whole_optimizer_state(engine)
    if ranks.first:
        _publish_checkpoint(current, checkpoint, trained, optimizer_state, final, paths)
        _publish_rollouts(current, batches, paths.out_rollouts, checkpoint.digest)
    ranks.barrier()
    return final


def _publish_checkpoint(
    current: _Round,
    checkpoint: Checkpoint,
    trained: HybridModel,
    optimizer_state: dict[str, Tensor],
    final: dict[str, float],
    paths: RoundPaths,
) -> None:
    publish_checkpoint(
        trained,
        paths.out_checkpoint,
        stage=f"rl-{current.number}",
        step=current.step,
        tokens_seen=checkpoint.manifest.tokens_seen,
        recipe_digest=current.recipe.digest(),
        parents={"checkpoint": checkpoint.digest},
        metrics={name: value for name, value in final.items() if name.startswith("rl/")},
        optimizer_state=optimizer_state,
    )


def _begin(
    recipe: Recipe,
    number: int,
    paths: RoundPaths,
    state: LadderState,
    engine: Engine,
    generator: SyncedGenerator,
    writer: MetricsWriter,
) -> _Round:
    open_artifact(paths.prompts, "prompts")
    settings = UpdateSettings(
        objective=objective_of(recipe.rl.algorithm, state.is_weight_cap),
        updates=recipe.rl.updates_per_batch,
        learning_rate=recipe.rl.learning_rate,
        grad_clip=state.grad_clip,
        temperature=recipe.rollout.temperature,
        minimum_correlation=recipe.rl.minimum_probability_correlation,
    )
    return _Round(
        recipe=recipe,
        number=number,
        window=state.window,
        engine=engine,
        generator=generator,
        tokenizer=Tokenizer.load(paths.tokenizer),
        prompts=list(read_jsonl(paths.prompts / "prompts.jsonl", RLPrompt)),
        settings=settings,
        writer=writer,
    )


def _run_batches(current: _Round) -> list[Batch]:
    first = current.engine.ranks.first
    progress = Progress(current.recipe.rl.batches_per_round, "batches") if first else None
    batches = []
    for number in range(current.recipe.rl.batches_per_round):
        batch = _collect(current, number)
        _learn(current, batch, number)
        batches.append(batch)
        reward = current.writer.last.get("rl/reward/mean", float("nan"))
        if progress is not None:
            progress.update(number + 1, f"window {current.window}, reward {reward:.3f}")
    return batches


def _collect(current: _Round, number: int) -> Batch:
    """Sample and judge on the first rank with the present weights; all ranks get the batch."""
    ranks = current.engine.ranks
    model = current.engine.sampling_model()
    if not ranks.first:
        return batch_from_json(ranks.from_first(None))
    synced = current.generator.sync(model, current.step)
    current.writer.log(
        current.step,
        {
            "rollout/sync/seconds": synced.seconds,
            "rollout/sync/probe_difference": synced.probe_difference,
        },
    )
    batch = collect_batch(
        current.recipe,
        current.prompts,
        current.generator,
        current.tokenizer,
        window=current.window,
        round_number=current.number,
        batch_number=number,
    )
    if ranks.count > 1:
        ranks.from_first(batch_to_json(batch))
    return batch


def _learn(current: _Round, batch: Batch, number: int) -> None:
    """Recompute the old policy, take the updates of one batch, and record what happened.

    A batch without any signal takes no updates; the gate after the round judges how much of that
    is too much.
    """
    trainable = [rollout for rollout in batch.kept if rollout.advantage is not None]
    if not trainable and current.engine.ranks.first:
        print(
            f"round {current.number}, batch {number}: none of {batch.dropped_groups} groups has "
            f"any spread in its rewards after {batch.waves} waves, so nothing is learnt from it"
        )
    settings = current.settings
    entropy = recompute_old_policy(current.engine, batch.rollouts, settings.temperature)
    agreement = check_agreement(batch.rollouts, settings.minimum_correlation)
    kept = sum(len(rollout.tokens) for rollout in batch.kept)
    current.writer.log(
        current.step,
        {
            **batch_metrics(batch.rollouts, current.window),
            "rl/entropy": entropy,
            "rl/probability_correlation": agreement.correlation,
            "rl/probability_difference/max": agreement.max_difference,
            "rl/mismatch_kl": agreement.kl_k3,
            "rl/groups/kept": batch.kept_groups,
            "rl/groups/dropped": batch.dropped_groups,
            "rl/tokens/trained": kept,
        },
    )
    seed = stream_seed(current.recipe.seed, "rl", current.number, number, "updates")
    for minibatch in split_updates(trainable, settings.updates, seed) if trainable else ():
        current.writer.log(current.step, update(current.engine, minibatch, settings))
        current.step += 1


def _publish_rollouts(
    current: _Round, batches: Sequence[Batch], out: Path, checkpoint_digest: str
) -> None:
    rollouts: list[Rollout] = [rollout for batch in batches for rollout in batch.rollouts]
    facts = round_facts(batches[0].rollouts, batches[-1].rollouts, current.window)
    count = write_jsonl(out / ROLLOUTS_FILE, rollouts)
    write_json(
        out / SUMMARY_FILE,
        {
            "passed_through": False,
            "round": current.number,
            "facts": json.loads(facts.model_dump_json()),
            "kept_groups": sum(batch.kept_groups for batch in batches),
            "dropped_groups": sum(batch.dropped_groups for batch in batches),
            "waves": sum(batch.waves for batch in batches),
            "is_weight_cap": current.settings.objective.weight_cap,
        },
    )
    publish(
        out,
        "rollouts",
        f"rl-{current.number}",
        parents={"checkpoint": checkpoint_digest},
        recipe_digest=current.recipe.digest(),
        counts={"rollouts": count},
    )


def _pass_through(
    paths: RoundPaths, recipe: Recipe, number: int, state: LadderState
) -> dict[str, float]:
    print(f"round {number} passes its checkpoint through: the ladder is {state.status}")
    manifest = pass_through(paths.checkpoint, paths.out_checkpoint)
    write_jsonl(paths.out_rollouts / ROLLOUTS_FILE, [])
    write_json(
        paths.out_rollouts / SUMMARY_FILE,
        {"passed_through": True, "round": number, "status": state.status},
    )
    publish(
        paths.out_rollouts,
        "rollouts",
        f"rl-{number}",
        parents={"checkpoint": digest_of_artifact(manifest)},
        recipe_digest=recipe.digest(),
        counts={"rollouts": 0},
    )
    with MetricsWriter(paths.metrics):
        return {}
