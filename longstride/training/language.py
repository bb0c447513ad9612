"""Next-token training on packed rows: continual pretraining, context extension and SFT."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from longstride.errors import RecipeError
from longstride.model.hybrid import HybridModel
from longstride.model.logprobs import token_logprobs
from longstride.recipe.stages import extension_of
from longstride.store.metrics import MetricsWriter
from longstride.store.progress import Progress
from longstride.store.seeds import stream_seed
from longstride.training.checkpoints import open_checkpoint, publish_checkpoint
from longstride.training.engine import Engine
from longstride.training.packed import PackedRows, open_packed, step_indices
from longstride.training.schedules import Schedule, constant, constant_then_decay, cosine
from schemas.artifacts import CheckpointManifest
from schemas.recipe import Recipe
from schemas.stages import OptimizerConfig

MICROBATCH_TOKENS = 4096
"""Activations of about 200 kB a token at width 128 stay below 1 GB."""
HELD_OUT_SHARE = 1 / 32


@dataclass(frozen=True)
class Plan:
    """What one stage does with its rows."""

    rows_per_step: int
    steps: int
    rate: Schedule
    optimizer: OptimizerConfig
    rope_base: float | None = None


def initialise(recipe: Recipe, out: Path) -> CheckpointManifest:
    """Publish freshly initialised weights, the start of a run without a base model."""
    model = HybridModel(recipe.model)
    model.initialise(stream_seed(recipe.seed, "initialise"))
    return publish_checkpoint(
        model,
        out,
        stage="initialise",
        step=0,
        tokens_seen=0,
        recipe_digest=recipe.digest(),
        parents={},
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
        return Plan(pretrain.rows_per_step, steps, rate, pretrain.optimizer)
    if stage == "sft":
        sft = recipe.sft
        steps = max(1, round(sft.epochs * rows / sft.rows_per_step))
        rate = cosine(sft.learning_rate, sft.final_learning_rate, steps, sft.warmup_steps)
        return Plan(sft.rows_per_step, steps, rate, sft.optimizer)
    extension = extension_of(recipe, stage)
    steps = math.ceil(extension.tokens / (extension.window * extension.rows_per_step))
    rate = constant(extension.learning_rate)
    return Plan(extension.rows_per_step, steps, rate, extension.optimizer, extension.rope_base)


def train_stage(
    recipe: Recipe, stage: str, packed: Path, parent: Path, out: Path, metrics: Path
) -> dict[str, float]:
    """Train one stage from a parent checkpoint and publish the result.

    Returns:
        Final metrics: training and held-out loss (nats a token), before and after.

    Raises:
        DataError: The rows or the parent checkpoint cannot be used.
    """
    checkpoint = open_checkpoint(parent)
    model = checkpoint.model
    rows = open_packed(packed, model.config.vocab_size)
    held_out_rows = min(64, max(1, int(rows.rows * HELD_OUT_SHARE))) if rows.rows > 1 else 0
    training = rows.take(torch.arange(0, rows.rows - held_out_rows))
    held_out = rows.take(torch.arange(rows.rows - held_out_rows, rows.rows))
    plan = plan_of(recipe, stage, training.rows)
    if plan.rope_base is not None:
        model.config = model.config.model_copy(update={"rope_base": plan.rope_base})
    with MetricsWriter(metrics) as writer:
        before = evaluate(model, held_out)
        writer.log(0, {"validation/loss": before})
        loss = _train(model, training, plan, stream_seed(recipe.seed, stage, "rows"), writer)
        after = evaluate(model, held_out)
        writer.log(plan.steps, {"validation/loss": after})
    final = {"loss": loss, "validation_loss": after, "validation_loss_before": before}
    tokens = plan.steps * plan.rows_per_step * training.window
    publish_checkpoint(
        model,
        out,
        stage=stage,
        step=plan.steps,
        tokens_seen=checkpoint.manifest.tokens_seen + tokens,
        recipe_digest=recipe.digest(),
        parents={"checkpoint": checkpoint.digest, "packed": rows.digest},
        metrics=final,
    )
    return final


def _train(
    model: HybridModel, rows: PackedRows, plan: Plan, seed: int, writer: MetricsWriter
) -> float:
    """Run all steps; return the mean loss over the last tenth of them."""
    engine = Engine(model, plan.optimizer)
    progress = Progress(plan.steps, "steps")
    tail: list[float] = []
    indices = step_indices(rows.rows, plan.rows_per_step, plan.steps, seed)
    for step, index in enumerate(indices):
        batch = rows.take(index)
        loss = accumulate(model, batch, engine.backward)
        rate = plan.rate(step)
        norm = engine.step(rate, plan.optimizer.grad_clip)
        writer.log(
            step,
            {
                "train/loss": loss,
                "train/grad_norm": norm,
                "train/learning_rate": rate,
                "train/skipped_steps": engine.skipped_steps,
            },
        )
        if step >= plan.steps * 0.9:
            tail.append(loss)
        progress.update(step + 1, f"loss {loss:.3f}")
    return sum(tail) / max(1, len(tail))


def accumulate(
    model: HybridModel, batch: PackedRows, backward: Callable[[torch.Tensor], None]
) -> float:
    """Accumulate the gradient of a step over microbatches; return its mean loss.

    The mean runs over all target tokens of the step, so the cut into microbatches does not matter.
    """
    targets = int(batch.loss_mask_NT[:, 1:].sum())
    if targets == 0:
        raise RecipeError("a step has no target tokens; raise rows_per_step or check the loss mask")
    total = 0.0
    for part in batch.microbatches(MICROBATCH_TOKENS):
        loss, aux = _losses(model, part)
        share = part.rows / batch.rows
        backward(loss / targets + model.config.router_aux_loss_coef * share * aux)
        total += float(loss.detach())
    return total / targets


def _losses(model: HybridModel, part: PackedRows) -> tuple[torch.Tensor, torch.Tensor]:
    """Summed negative log-likelihood of the targets, and the load-balancing loss."""
    output = model(part.tokens_NT, part.segments_NT, part.positions_NT)
    logp_BT, _ = token_logprobs(model, output.hidden_BTD[:, :-1], part.tokens_NT[:, 1:])
    mask_BT = part.loss_mask_NT[:, 1:]
    return -torch.where(mask_BT, logp_BT, 0.0).sum(), output.aux_loss


@torch.no_grad()
def evaluate(model: HybridModel, rows: PackedRows) -> float:
    """Mean negative log-likelihood a target token (nats); 0 when there are no rows."""
    total, targets = 0.0, 0
    for part in rows.microbatches(MICROBATCH_TOKENS) if rows.rows else ():
        loss, _ = _losses(model, part)
        total += float(loss)
        targets += int(part.loss_mask_NT[:, 1:].sum())
    return total / max(1, targets)
