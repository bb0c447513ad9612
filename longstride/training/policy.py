"""An RL round as a task: inputs in, a trained checkpoint and its rollouts out (report, sec. 3)."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from torch import Tensor

from longstride.data.recuration import prompts_of_round
from longstride.model.hybrid import HybridModel
from longstride.recipe.notices import notices
from longstride.rewards.generative.judge import JudgeState
from longstride.rl.objectives import objective_of
from longstride.rl.reflection import ReflectionMatcher
from longstride.rollout.opening import open_generator
from longstride.rollout.protocol import SyncedGenerator
from longstride.store.artifacts import digest_of_artifact, open_artifact, publish
from longstride.store.files import read_json, write_json, write_jsonl
from longstride.store.metrics import MetricsWriter
from longstride.tokens.tokenizer import Tokenizer
from longstride.training import resuming
from longstride.training.batches import BatchStore
from longstride.training.checkpoints import (
    Checkpoint,
    open_checkpoint,
    pass_through,
    publish_checkpoint,
)
from longstride.training.collecting import Batch, Collector
from longstride.training.engine import Engine
from longstride.training.engines import create_engine, whole_model, whole_optimizer_state
from longstride.training.guarding import UpdateGuard
from longstride.training.judging import RoundJudge, open_round_judge
from longstride.training.ladder import LADDER_FILE, ROLLOUTS_FILE, SUMMARY_FILE
from longstride.training.launching import RoundRequest, run_in_ranks
from longstride.training.loop import Place
from longstride.training.measuring import round_facts
from longstride.training.ranks import Ranks
from longstride.training.resuming import InProgress
from longstride.training.rounds import RoundLoop, RoundState, batches_are_there
from longstride.training.updating import UpdateSettings
from longstride.version import code_digest
from schemas.base import Contract
from schemas.curriculum import PassHistory
from schemas.ladder import LadderState
from schemas.recipe import Recipe
from schemas.rows import RLPrompt, Rollout

Kept = TypeVar("Kept", bound=Contract)

AUDIT_FILE = "audit.jsonl"
HISTORY_FILE = "pass_history.json"
JUDGE_FILE = "judge_state.json"
SECOND_PHASE_FILE = "second_phase.json"
"""Beside the weights of a round's checkpoint."""


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

    The first rank samples, judges and writes; all of them train. A round that was killed goes on
    from its last in-progress checkpoint, and ends with the weights and the metrics of a round that
    was not.
    """
    state = read_json(paths.ladder / LADDER_FILE, LadderState)
    checkpoint = open_checkpoint(paths.checkpoint)
    place = _place(recipe, number, paths, checkpoint)
    store = BatchStore(place.directory / "batches" if ranks.first else None, place.key)
    found = _find(place, store, ranks)
    history = _kept(paths, HISTORY_FILE, PassHistory) or PassHistory()
    prompts, second_choice = prompts_of_round(recipe, number, paths.prompts, history)
    if second_choice is not None and ranks.first:
        write_json(paths.out_rollouts / SECOND_PHASE_FILE, second_choice)
    judged = _kept(paths, JUDGE_FILE, JudgeState)
    model = checkpoint.model.float()
    if found is not None:
        model.load_state_dict(found.weights())
    engine = create_engine(model, recipe.rl.optimizer, recipe.engine, ranks)
    if found is None and checkpoint.optimizer_state is not None:
        engine.load_optimizer_state(checkpoint.optimizer_state)
    with (
        resuming.open_metrics(paths.metrics, ranks, found) as writer,
        open_generator(recipe, engine.sampling_model(), paths.metrics) as generator,
        # Before the first samples: the verifiers load while they are drawn.
        open_round_judge(
            recipe, number, prompts if ranks.first else (), place.directory, judged
        ) as judge,
    ):
        loop = _loop(
            recipe, number, paths, state, engine, generator, writer, place, store, prompts, judge,
            history,
        )  # fmt: skip
        for notice in notices(recipe) if ranks.first else ():
            print(f"notice: {notice}")
        if found is not None:
            loop.restore(found)
        batches = loop.run()
        final = dict(writer.last)
    trained, optimizer_state = whole_model(engine), whole_optimizer_state(engine)
    if ranks.first:
        _publish_checkpoint(loop, checkpoint, trained, optimizer_state, final, paths)
        _publish_rollouts(loop, batches, paths.out_rollouts, checkpoint.digest)
        resuming.discard(place.directory, place.key)
    ranks.barrier()
    return final


def _kept(paths: RoundPaths, name: str, kind: type[Kept]) -> Kept | None:
    """A record that the round before left beside its weights."""
    path = paths.checkpoint / name
    return read_json(path, kind) if path.is_file() else None


def _place(recipe: Recipe, number: int, paths: RoundPaths, checkpoint: Checkpoint) -> Place:
    """Where the round keeps what a resumed one needs, and what tells it from any other."""
    prompts = open_artifact(paths.prompts, "prompts")
    ladder = open_artifact(paths.ladder, "ladder_state")
    return Place(
        resuming.resume_directory(paths.out_checkpoint),
        {
            "round": str(number),
            "recipe": recipe.digest(),
            "parent checkpoint": checkpoint.digest,
            "prompts": digest_of_artifact(prompts),
            "ladder": digest_of_artifact(ladder),
            "code": code_digest(),
        },
        paths.metrics,
    )


def _find(place: Place, store: BatchStore, ranks: Ranks) -> InProgress | None:
    """The checkpoint to go on from, when the batches that belong to it are there too. Collective.

    Batches of weights that were lost are forgotten: they will be sampled again.
    """
    found = resuming.find_on_ranks(place.directory, place.key, ranks)
    if found is None:
        store.keep_only(0)
        return None
    whole = not ranks.first or batches_are_there(found, store)
    if not ranks.from_first(whole):
        if ranks.first:
            print("the round starts over: batches of its in-progress checkpoint are missing")
            resuming.discard(place.directory, place.key)
        ranks.barrier()
        return None
    state = RoundState.of(found)
    store.keep_only(state.batch)
    if ranks.first:
        print(f"the round goes on in batch {state.batch} after {state.update} of its updates")
    return found


def _loop(
    recipe: Recipe,
    number: int,
    paths: RoundPaths,
    ladder: LadderState,
    engine: Engine,
    generator: SyncedGenerator,
    writer: MetricsWriter,
    place: Place,
    store: BatchStore,
    prompts: Sequence[RLPrompt],
    judge: RoundJudge,
    history: PassHistory,
) -> RoundLoop:
    tokenizer = Tokenizer.load(paths.tokenizer)
    settings = UpdateSettings(
        objective=objective_of(recipe.rl.algorithm, ladder.is_weight_cap),
        updates=recipe.rl.updates_per_batch,
        learning_rate=recipe.rl.learning_rate,
        grad_clip=ladder.grad_clip,
        temperature=recipe.rollout.temperature,
        minimum_correlation=recipe.rl.minimum_probability_correlation,
        audit=recipe.rl.audit,
    )
    collector = Collector(
        recipe,
        prompts,
        generator,
        tokenizer,
        ladder.window,
        number,
        judge,
        frozenset(history.retired(recipe.rl.curriculum)),
    )
    return RoundLoop(
        recipe=recipe,
        number=number,
        window=ladder.window,
        engine=engine,
        generator=generator,
        collector=collector,
        settings=settings,
        guard=UpdateGuard(
            recipe.rl.maximum_bad_updates, paths.metrics if engine.ranks.first else None
        ),
        matcher=ReflectionMatcher(recipe.rl.audit.reflection, tokenizer.token_bytes),
        writer=writer,
        place=place,
        store=store,
        state=RoundState(history=history),
    )


def _publish_checkpoint(
    loop: RoundLoop,
    checkpoint: Checkpoint,
    trained: HybridModel,
    optimizer_state: dict[str, Tensor],
    final: dict[str, float],
    paths: RoundPaths,
) -> None:
    records: dict[str, Contract] = {HISTORY_FILE: loop.state.history}
    if state := loop.collector.judge.state():
        records[JUDGE_FILE] = JudgeState.model_validate(state)
    publish_checkpoint(
        trained,
        paths.out_checkpoint,
        stage=f"rl-{loop.number}",
        step=loop.state.step,
        tokens_seen=checkpoint.manifest.tokens_seen,
        recipe_digest=loop.recipe.digest(),
        parents={
            "checkpoint": checkpoint.digest,
            "tokenizer": loop.collector.tokenizer.digest,
        },
        metrics={name: value for name, value in final.items() if name.startswith("rl/")},
        optimizer_state=optimizer_state,
        records=records,
    )


def _publish_rollouts(
    loop: RoundLoop, batches: Sequence[Batch], out: Path, checkpoint_digest: str
) -> None:
    rollouts: list[Rollout] = [rollout for batch in batches for rollout in batch.rollouts]
    reasons = groups_without_signal(batches)
    if not loop.state.step:
        said = ", ".join(f"{count} {why.replace('_', ' ')}" for why, count in reasons.items())
        groups = sum(batch.groups for batch in batches)
        print(f"round {loop.number} took no update: of {groups} groups, {said or 'none was full'}")
    facts = round_facts(batches[0].rollouts, batches[-1].rollouts, loop.window)
    count = write_jsonl(out / ROLLOUTS_FILE, rollouts)
    audited = write_jsonl(out / AUDIT_FILE, loop.state.rows)
    write_json(
        out / SUMMARY_FILE,
        {
            "passed_through": False,
            "round": loop.number,
            "facts": json.loads(facts.model_dump_json()),
            "kept_groups": sum(batch.kept_groups for batch in batches),
            "dropped_groups": sum(batch.dropped_groups for batch in batches),
            "groups_without_signal": reasons,
            "waves": sum(batch.waves for batch in batches),
            "updates": loop.state.step,
            "skipped_updates": loop.guard.skipped,
            "retired_prompts": len(loop.collector.retired),
            "is_weight_cap": loop.settings.objective.weight_cap,
        },
    )
    publish(
        out,
        "rollouts",
        f"rl-{loop.number}",
        parents={"checkpoint": checkpoint_digest},
        recipe_digest=loop.recipe.digest(),
        counts={"rollouts": count, "audit": audited},
    )


def groups_without_signal(batches: Sequence[Batch]) -> dict[str, int]:
    """Groups from which nothing could be learnt, by reason."""
    reasons: Counter[str] = Counter()
    for batch in batches:
        reasons.update(batch.dropped_for)
    return dict(reasons)


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
