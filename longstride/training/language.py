"""Next-token training on packed rows: continual pretraining, context extension and SFT."""

from __future__ import annotations

import math
from pathlib import Path

import torch

from longstride.model.hybrid import HybridModel
from longstride.recipe.stages import extension_of
from longstride.store.seeds import stream_seed
from longstride.tokens.tokenizer import Tokenizer
from longstride.training import resuming
from longstride.training.checkpoints import Checkpoint, open_checkpoint, publish_checkpoint
from longstride.training.context import (
    ContextProbe,
    cells,
    context_probe,
    rope_base_of,
    summary,
)
from longstride.training.engine import Engine
from longstride.training.engines import create_engine, whole_model
from longstride.training.launching import LanguageRequest, run_in_ranks
from longstride.training.loop import Log, Loop, Place, Plan, evaluate
from longstride.training.packed import PackedRows, RowCursor, open_packed
from longstride.training.ranks import Ranks
from longstride.training.resuming import InProgress, Position
from longstride.training.schedules import constant, constant_then_decay, cosine
from longstride.training.starting import load_starting_point
from longstride.version import code_digest
from schemas.artifacts import CheckpointManifest
from schemas.recipe import Recipe

CONTEXT = "context_before"
"""Name of the probe's first result among the observers of a checkpoint."""
HELD_OUT_SHARE = 1 / 32


def initialise(recipe: Recipe, out: Path) -> CheckpointManifest:
    """Publish the weights that the run starts from: fresh ones, or those of `start_from`.

    Raises:
        RecipeError: The starting point is not what the recipe says.
        CheckpointError: The starting point's weights cannot be used.
    """
    seed = stream_seed(recipe.seed, "initialise")
    if recipe.start_from is None:
        model = HybridModel(recipe.model)
        model.initialise(seed)
    else:
        model = load_starting_point(recipe.model, recipe.start_from)
    return publish_checkpoint(
        model,
        out,
        stage="initialise",
        step=0,
        tokens_seen=0,
        recipe_digest=recipe.digest(),
        parents={"start_from": recipe.start_from.digest} if recipe.start_from else {},
        metrics={},
    )


def plan_of(recipe: Recipe, stage: str, rows: int) -> Plan:
    """Plan of `pretrain`, `extend-<n>` or `sft` for an artifact with `rows` rows.

    Raises:
        RecipeError: The recipe has no such stage.
    """
    if stage == "pretrain":
        pretrain = recipe.pretrain
        steps = math.ceil(pretrain.tokens / (pretrain.window * pretrain.rows_per_step))
        rate = constant_then_decay(
            pretrain.learning_rate,
            pretrain.final_learning_rate,
            steps,
            pretrain.constant_fraction,
            pretrain.warmup_steps,
        )
        return Plan(pretrain.rows_per_step, steps, rate, pretrain.optimizer, spikes=pretrain.spikes)
    if stage == "sft":
        sft = recipe.sft
        steps = max(1, round(sft.epochs * rows / sft.rows_per_step))
        rate = cosine(sft.learning_rate, sft.final_learning_rate, steps, sft.warmup_steps)
        return Plan(sft.rows_per_step, steps, rate, sft.optimizer, spikes=sft.spikes)
    extension = extension_of(recipe, stage)
    steps = math.ceil(extension.tokens / (extension.window * extension.rows_per_step))
    return Plan(
        extension.rows_per_step,
        steps,
        constant(extension.learning_rate, extension.warmup_steps),
        extension.optimizer,
        extension.rope_base,
        extension.spikes,
    )


def train_stage(
    recipe: Recipe,
    stage: str,
    packed: Path,
    parent: Path,
    out: Path,
    metrics: Path,
    tokenizer: Path | None = None,
) -> dict[str, float]:
    """Train one stage from a parent checkpoint and publish the result.

    An extension stage also measures perplexity by position and, given the tokenizer, retrieval of a
    passkey: of its parent as that was, and of its result.

    A stage that was killed goes on from its last in-progress checkpoint, and ends with the weights
    and the metrics of a stage that was not.

    Returns:
        Final metrics: training and held-out loss (nats a token), before and after.

    Raises:
        DataError: The rows or the parent checkpoint cannot be used.
        TrainingDiverged: Loss or gradients exploded again after every back-off.
        EngineError: A rank process failed for a reason that is not the user's.
    """
    if recipe.engine.kind == "deepspeed":
        request = LanguageRequest(
            recipe=recipe,
            stage=stage,
            packed=packed,
            parent=parent,
            out=out,
            metrics=metrics,
            tokenizer=tokenizer,
        )
        return run_in_ranks(request, recipe.engine)
    return train_on_ranks(recipe, stage, packed, parent, out, metrics, Ranks(), tokenizer)


def train_on_ranks(
    recipe: Recipe,
    stage: str,
    packed: Path,
    parent: Path,
    out: Path,
    metrics: Path,
    ranks: Ranks,
    tokenizer: Path | None = None,
) -> dict[str, float]:
    """The same in this process, one of `ranks.count` that all call it; the first one writes."""
    checkpoint = open_checkpoint(parent)
    rows = open_packed(packed, checkpoint.model.config.vocab_size)
    training, held_out = _split(rows)
    plan = plan_of(recipe, stage, training.rows)
    place = Place(
        resuming.resume_directory(out),
        {
            "stage": stage,
            "recipe": recipe.digest(),
            "parent checkpoint": checkpoint.digest,
            "packed rows": rows.digest,
            "code": code_digest(),
        },
        metrics,
    )
    found = resuming.find_on_ranks(place.directory, place.key, ranks)
    parent_base = checkpoint.model.config.rope_base
    model = _starting_model(checkpoint, plan, found)
    engine = create_engine(model, plan.optimizer, recipe.engine, ranks)
    probe = context_probe(recipe, stage, held_out, tokenizer)
    cursor = RowCursor(training.rows, plan.rows_per_step, stream_seed(recipe.seed, stage, "rows"))
    with resuming.open_metrics(metrics, ranks, found) as writer:
        log = writer.log
        position = found.position if found else _before(engine, held_out, probe, parent_base, log)
        loop = Loop(engine, training, plan, cursor, log, place, position)
        if found is not None:
            loop.restore(found)
            if ranks.first:
                print(f"{stage} goes on after step {found.position.step} of {plan.steps}")
        loss = loop.run()
        after = evaluate(engine, held_out)
        context = probe.measure(engine)
        log(plan.steps, {"validation/loss": after, **context})
    final = {
        "loss": loss,
        "validation_loss": after,
        "validation_loss_before": position.validation_before,
        **loop.steps.counts(),
        **summary(position.observers[CONTEXT], context),
    }
    trained = whole_model(engine)
    if ranks.first:
        publish_checkpoint(
            trained,
            out,
            stage=stage,
            step=plan.steps,
            tokens_seen=checkpoint.manifest.tokens_seen
            + plan.steps * plan.rows_per_step * training.window,
            recipe_digest=recipe.digest(),
            parents={
                "checkpoint": checkpoint.digest,
                "packed": rows.digest,
                **({"tokenizer": Tokenizer.load(tokenizer).digest} if tokenizer else {}),
            },
            metrics=final | cells(position.observers[CONTEXT], context),
        )
        resuming.discard(place.directory, place.key)
    ranks.barrier()
    return final


def _before(
    engine: Engine, held_out: PackedRows, probe: ContextProbe, parent_base: float, log: Log
) -> Position:
    """Where a stage starts: the loss with the stage's own RoPE base, the context with its parent's.

    The first is what training sets out from, the second what the stage has to improve on.
    """
    loss = evaluate(engine, held_out)
    with rope_base_of(engine.model, parent_base):
        context = probe.measure(engine)
    log(0, {"validation/loss": loss, **context})
    return Position(step=0, validation_before=loss, observers={CONTEXT: context})


def _split(rows: PackedRows) -> tuple[PackedRows, PackedRows]:
    """Training rows, and the last few as held-out rows."""
    count = min(64, max(1, int(rows.rows * HELD_OUT_SHARE))) if rows.rows > 1 else 0
    border = rows.rows - count
    return rows.take(torch.arange(0, border)), rows.take(torch.arange(border, rows.rows))


def _starting_model(checkpoint: Checkpoint, plan: Plan, found: InProgress | None) -> HybridModel:
    """The parent's weights, or those of the in-progress checkpoint, in fp32."""
    model = checkpoint.model.float()
    if plan.rope_base is not None:
        model.config = model.config.model_copy(update={"rope_base": plan.rope_base})
    if found is not None:
        model.load_state_dict(found.weights())
    return model
