"""Sub-pipelines: one a stage, with the quality gates between its GPU steps."""

from typing import Any, NamedTuple

from kfp import dsl

from components.data.build_chat_examples.component import build_chat_examples
from components.data.pack_chat.component import pack_chat
from components.data.pack_documents.component import pack_documents
from components.gates.expansion_gate.component import expansion_gate
from components.quality.quality_gate.component import quality_gate
from components.training.policy_round.component import policy_round
from components.training.train_language.component import train_language
from pipelines.wiring import DATA, LIGHT, QUALITY, TORCH, configure
from schemas.recipe import Recipe, StageResources


class SftOutputs(NamedTuple):
    """What SFT hands on."""

    checkpoint: dsl.Model
    examples: dsl.Dataset


class RoundOutputs(NamedTuple):
    """What an RL round hands on."""

    checkpoint: dsl.Model
    ladder: dsl.Artifact


def gate(resources: StageResources, edge: str, stage: Any, label: str, **arguments: Any) -> Any:
    """A quality gate on an edge; `arguments` are its recipe, subject and reference."""
    task = quality_gate(edge=edge, stage=stage, **arguments)
    # A verdict may hold an operator's override, which counts in its own run only.
    task.set_caching_options(False)
    return configure(task, resources.quality, QUALITY, f"{edge} {label}")


def language_stage(recipe: Recipe) -> Any:
    """Pack -> E2 -> train -> E7, for continual pretraining and for each context extension."""
    resources = recipe.resources

    @dsl.pipeline(name="language-stage", description="Pack, gate, train, gate.")
    def stage_pipeline(
        code_digest: str,
        stage: str,
        recipe_artifact: dsl.Input[dsl.Artifact],
        corpus: dsl.Input[dsl.Dataset],
        tokenizer: dsl.Input[dsl.Artifact],
        parent: dsl.Input[dsl.Model],
    ) -> dsl.Model:
        packed = configure(
            pack_documents(
                code_digest=code_digest, stage=stage, recipe=recipe_artifact, corpus=corpus,
                tokenizer=tokenizer,
            ),
            resources.data, DATA, "pack",
        )  # fmt: skip
        rows_gate = gate(
            resources, "E2", stage, "packed rows", code_digest=code_digest,
            recipe=recipe_artifact, subject=packed.outputs["packed"], reference=tokenizer,
        )  # fmt: skip
        trained = configure(
            train_language(
                code_digest=code_digest, stage=stage, recipe=recipe_artifact,
                packed=packed.outputs["packed"], parent=parent, tokenizer=tokenizer,
            ),
            resources.training, TORCH, "train",
        ).after(rows_gate)  # fmt: skip
        gate(
            resources, "E7", stage, "checkpoint", code_digest=code_digest,
            recipe=recipe_artifact, subject=trained.outputs["checkpoint"], reference=parent,
        )  # fmt: skip
        return trained.outputs["checkpoint"]

    return stage_pipeline


def sft_stage(recipe: Recipe) -> Any:
    """Examples -> pack -> E3 -> train -> E7."""
    resources = recipe.resources

    @dsl.pipeline(name="sft-stage", description="Write examples, pack, gate, train, gate.")
    def stage_pipeline(
        code_digest: str,
        recipe_artifact: dsl.Input[dsl.Artifact],
        tokenizer: dsl.Input[dsl.Artifact],
        parent: dsl.Input[dsl.Model],
    ) -> SftOutputs:
        examples = configure(
            build_chat_examples(code_digest=code_digest, recipe=recipe_artifact),
            resources.data, DATA, "chat examples",
        )  # fmt: skip
        packed = configure(
            pack_chat(
                code_digest=code_digest, recipe=recipe_artifact,
                examples=examples.outputs["examples"], tokenizer=tokenizer,
            ),
            resources.data, DATA, "pack",
        )  # fmt: skip
        rows_gate = gate(
            resources, "E3", "sft", "chat examples", code_digest=code_digest,
            recipe=recipe_artifact, subject=packed.outputs["packed"],
            reference=examples.outputs["examples"],
        )  # fmt: skip
        trained = configure(
            train_language(
                code_digest=code_digest, stage="sft", recipe=recipe_artifact,
                packed=packed.outputs["packed"], parent=parent, tokenizer=tokenizer,
            ),
            resources.training, TORCH, "train",
        ).after(rows_gate)  # fmt: skip
        gate(
            resources, "E7", "sft", "checkpoint", code_digest=code_digest,
            recipe=recipe_artifact, subject=trained.outputs["checkpoint"], reference=parent,
        )  # fmt: skip
        return SftOutputs(trained.outputs["checkpoint"], examples.outputs["examples"])

    return stage_pipeline


def rl_round(recipe: Recipe) -> Any:
    """Rollouts and updates -> E5, E7 -> expansion gate (E6)."""
    resources = recipe.resources

    @dsl.pipeline(name="rl-round", description="Roll out, update, gate, decide the next window.")
    def round_pipeline(
        code_digest: str,
        number: int,
        stage: str,
        recipe_artifact: dsl.Input[dsl.Artifact],
        prompts: dsl.Input[dsl.Dataset],
        tokenizer: dsl.Input[dsl.Artifact],
        ladder: dsl.Input[dsl.Artifact],
        parent: dsl.Input[dsl.Model],
    ) -> RoundOutputs:
        trained = configure(
            policy_round(
                code_digest=code_digest, number=number, recipe=recipe_artifact, prompts=prompts,
                tokenizer=tokenizer, ladder=ladder, parent=parent,
            ),
            resources.rl, TORCH, "policy round",
        )  # fmt: skip
        rollouts_gate = gate(
            resources, "E5", stage, "rollouts", code_digest=code_digest,
            recipe=recipe_artifact, subject=trained.outputs["rollouts"],
        )  # fmt: skip
        gate(
            resources, "E7", stage, "checkpoint", code_digest=code_digest,
            recipe=recipe_artifact, subject=trained.outputs["checkpoint"], reference=parent,
        )  # fmt: skip
        decided = configure(
            expansion_gate(
                code_digest=code_digest, number=number, recipe=recipe_artifact,
                rollouts=trained.outputs["rollouts"], ladder=ladder,
            ),
            resources.light, LIGHT, "E6 expansion gate",
        ).after(rollouts_gate)  # fmt: skip
        return RoundOutputs(trained.outputs["checkpoint"], decided.outputs["next_ladder"])

    return round_pipeline
