"""The whole path as one DAG: corpus to pretraining, extension, SFT, RL rounds and benchmark."""

from dataclasses import dataclass
from typing import Any

from kfp import dsl

from components.data.build_corpus.component import build_corpus
from components.data.curate_prompts.component import curate_prompts
from components.data.train_tokenizer.component import train_tokenizer
from components.evaluation.run_benchmark.component import run_benchmark
from components.gates.start_ladder.component import start_ladder
from components.model.initialise_model.component import initialise_model
from components.report.write_report.component import write_report
from components.run.prerequisites.component import prerequisites
from longstride.recipe.prerequisites import structure_of
from longstride.recipe.stages import extension_names
from pipelines.stages import gate, language_stage, rl_round, sft_stage
from pipelines.wiring import (
    DATA,
    LIGHT,
    REPORT,
    TORCH,
    as_parameter,
    configure,
)
from schemas.recipe import Recipe


@dataclass(frozen=True)
class _Stages:
    """The sub-pipelines of a recipe; kfp builds them outside the pipeline that uses them."""

    language: Any
    sft: Any
    round: Any


class _Run:
    """Tasks of one run under construction, with what every task takes."""

    def __init__(self, recipe: Recipe, stages: _Stages, text: Any, code_digest: Any) -> None:
        self.recipe = recipe
        self.stages = stages
        self.resources = recipe.resources
        self.code_digest = code_digest
        checked = configure(
            prerequisites(recipe=text, code_digest=code_digest, structure=structure_of(recipe)),
            self.resources.light, LIGHT, "prerequisites",
        )  # fmt: skip
        checked.set_caching_options(False)
        self.artifact = checked.outputs["resolved_recipe"]
        self.sources = checked.outputs["sources"]
        self.corpus: Any = None
        self.tokenizer: Any = None

    def task(self, component: Any, **arguments: Any) -> Any:
        """A task with the recipe and the code digest."""
        return component(code_digest=self.code_digest, recipe=self.artifact, **arguments)

    def gate(self, edge: str, stage: str, subject: Any, reference: Any) -> Any:
        """A quality gate on an edge between stages."""
        return gate(
            self.resources, edge, stage, stage, code_digest=self.code_digest,
            recipe=self.artifact, subject=subject, reference=reference,
        )  # fmt: skip

    def language_stage(self, stage: str, parent: Any) -> Any:
        """Continual pretraining or a context extension."""
        return self.stages.language(
            code_digest=self.code_digest, stage=stage, recipe_artifact=self.artifact,
            corpus=self.corpus, tokenizer=self.tokenizer, parent=parent,
        ).set_display_name(stage)  # fmt: skip

    def benchmark(self, label: str, checkpoint: Any) -> Any:
        """avg@k of a checkpoint."""
        made = self.task(
            run_benchmark, label=label, tokenizer=self.tokenizer, checkpoint=checkpoint
        )
        return configure(made, self.resources.benchmark, TORCH, f"benchmark {label}")


def reasoning_pipeline(recipe: Recipe) -> Any:
    """The pipeline of a recipe, unrolled to its extension stages and RL rounds."""
    stages = _Stages(language_stage(recipe), sft_stage(recipe), rl_round(recipe))

    @dsl.pipeline(name=recipe.name, description=recipe.description or recipe.name)
    def pipeline(
        recipe_values: str = as_parameter(recipe.compact()), code_digest: str = "image"
    ) -> None:
        report = configure(
            write_report(pipeline_root=dsl.PIPELINE_ROOT_PLACEHOLDER),
            recipe.resources.light, REPORT, "report",
        )  # fmt: skip
        report.set_caching_options(False)
        with dsl.ExitHandler(report, name="run"):
            run = _Run(recipe, stages, recipe_values, code_digest)
            extended = _pretraining(run)
            _reinforcement(run, extended)

    return pipeline


def _pretraining(run: _Run) -> Any:
    """Corpus to the last context extension; returns its checkpoint."""
    resources = run.resources
    run.corpus = configure(
        run.task(build_corpus, sources=run.sources), resources.data, DATA, "corpus"
    ).outputs["corpus"]
    run.tokenizer = configure(
        run.task(train_tokenizer, corpus=run.corpus), resources.data, DATA, "tokenizer"
    ).outputs["tokenizer"]
    initial = configure(run.task(initialise_model), resources.light, TORCH, "initialise")
    corpus_gate = run.gate("E1", "corpus", run.corpus, run.tokenizer)
    stage = run.language_stage("pretrain", initial.outputs["checkpoint"]).after(corpus_gate)
    for name in extension_names(run.recipe):
        stage = run.language_stage(name, stage.output)
    return stage.output


def _reinforcement(run: _Run, extended: Any) -> None:
    """SFT, curated prompts, RL rounds up the ladder, and the benchmark before and after."""
    resources = run.resources
    common = {"code_digest": run.code_digest, "recipe_artifact": run.artifact}
    sft = run.stages.sft(tokenizer=run.tokenizer, parent=extended, **common)
    sft.set_display_name("sft")
    examples, checkpoint = sft.outputs["examples"], sft.outputs["checkpoint"]
    before = run.benchmark("sft", checkpoint).outputs["evaluation"]
    prompts = configure(
        run.task(
            curate_prompts, examples=examples, tokenizer=run.tokenizer, checkpoint=checkpoint
        ),
        resources.rl, TORCH, "curate prompts",
    ).outputs["prompts"]  # fmt: skip
    prompts_gate = run.gate("E4", "rl-prompts", prompts, examples)
    ladder = configure(run.task(start_ladder), resources.light, LIGHT, "start ladder").outputs[
        "ladder"
    ]
    for number in range(1, run.recipe.rl.rounds + 1):
        stage = run.stages.round(
            number=number, stage=f"rl-{number}", prompts=prompts, tokenizer=run.tokenizer,
            ladder=ladder, parent=checkpoint, **common,
        ).set_display_name(f"round {number}")  # fmt: skip
        stage.after(prompts_gate)
        checkpoint, ladder = stage.outputs["checkpoint"], stage.outputs["ladder"]
    after = run.benchmark("rl", checkpoint).outputs["evaluation"]
    run.gate("E8", "benchmark", after, before)
