"""The recipe: everything about a run, as data. Code never asks which recipe it runs."""

from __future__ import annotations

from typing import Any, Self

from pydantic import Field, field_validator, model_validator

from schemas.base import Contract, digest_of
from schemas.data import DataConfig, TaskFamily
from schemas.engine import EngineConfig, TorchEngine
from schemas.generators import VLLM_TEMPERATURES, vllm_obstacle
from schemas.ladder import LadderConfig
from schemas.model import ModelConfig, TokenizerConfig
from schemas.stages import (
    ExtensionStage,
    PretrainStage,
    RewardConfig,
    RLStage,
    RolloutConfig,
    SFTStage,
    StartingPoint,
)


class QualityConfig(Contract):
    """Thresholds of the quality gates; the checks themselves are the suites in schemas/suites."""

    thresholds: dict[str, float] = Field(default_factory=dict)
    """Overrides by `edge/check`, for example `E1/duplicate_share: 0.02`."""
    offenders: int = Field(default=20, ge=0, le=1000)
    """Row ids kept a failed check."""


class Toleration(Contract):
    """A Kubernetes toleration."""

    key: str
    """Taint key."""
    operator: str = "Exists"
    """Exists or Equal."""
    value: str = ""
    """Taint value when the operator is Equal."""
    effect: str = "NoSchedule"
    """Taint effect."""


class SecretReference(Contract):
    """A secret by name; its value never enters a recipe, an IR or a log."""

    secret: str = Field(min_length=1)
    """Name of the Kubernetes secret."""
    key: str = Field(min_length=1)
    """Key inside the secret."""
    variable: str = Field(min_length=1, pattern=r"^[A-Z][A-Z0-9_]*$")
    """Environment variable that receives it."""


class Resources(Contract):
    """What a task asks for; one machine clamps CPU cores and does not limit memory."""

    cpu: int = Field(default=1, ge=1, le=512)
    """CPU cores; on one machine also the number of threads."""
    memory: str = Field(default="2Gi", pattern=r"^\d+(\.\d+)?(Mi|Gi|Ti)$")
    """Memory limit."""
    gpus: int = Field(default=0, ge=0, le=1024)
    """Accelerators."""
    gpu_memory: str | None = Field(default=None, pattern=r"^\d+(\.\d+)?(Mi|Gi)$")
    """Memory of one accelerator, which the memory plan is checked against; null: not checked."""
    gpu_type: str = "nvidia.com/gpu"
    """Accelerator resource name."""
    node_selector: dict[str, str] = Field(default_factory=dict)
    """Node labels that the task requires."""
    tolerations: list[Toleration] = Field(default_factory=list)
    """Taints that the task tolerates."""
    shared_memory: str | None = Field(default=None, pattern=r"^\d+(\.\d+)?(Mi|Gi)$")
    """Size of a memory-backed /dev/shm, which multi-process data loading needs."""
    secrets: list[SecretReference] = Field(default_factory=list)
    """Secrets as environment variables."""
    checkpoint_store: str | None = Field(default=None, pattern=r"^(s3://[a-z0-9]|file:///).+$")
    """Where in-progress checkpoints are copied, s3://bucket/prefix, for a node that replaces this
    one; null: they are kept on the task's own disk only."""
    retries: int = Field(default=0, ge=0, le=10)
    """Further attempts after a failure."""
    timeout_seconds: int = Field(default=3600, ge=1)
    """Wall-clock limit of one attempt."""

    @model_validator(mode="after")
    def _gpu_tasks_can_retry(self) -> Self:
        if self.gpus and not self.retries:
            raise ValueError(
                f"a task with gpus={self.gpus} needs retries >= 1, got retries={self.retries}: "
                "nodes are preempted; set retries to 1 or more"
            )
        return self


class StageResources(Contract):
    """Resources by kind of task."""

    light: Resources = Field(default_factory=Resources)
    """Prerequisites, ladder gate, report."""
    data: Resources = Field(default_factory=Resources)
    """Corpus, packing, SFT data, prompts."""
    quality: Resources = Field(default_factory=Resources)
    """Quality gates."""
    training: Resources = Field(default_factory=lambda: Resources(cpu=2, memory="3Gi"))
    """Continual pretraining, extension and SFT."""
    rl: Resources = Field(default_factory=lambda: Resources(cpu=2, memory="3Gi"))
    """CISPO rounds and prompt curation."""
    benchmark: Resources = Field(default_factory=lambda: Resources(cpu=2, memory="3Gi"))
    """Benchmarks."""

    @model_validator(mode="after")
    def _only_training_has_checkpoints(self) -> Self:
        for name in ("light", "data", "quality", "benchmark"):
            uri = getattr(self, name).checkpoint_store
            if uri is not None:
                raise ValueError(
                    f"{name}.checkpoint_store={uri!r} has no effect: only tasks of `training` and "
                    "`rl` write in-progress checkpoints; set it there"
                )
        return self


class BenchmarkConfig(Contract):
    """Held-out tasks of increasing length, avg@k with a 95% interval."""

    problems_per_level: int = Field(default=25, ge=2)
    """Problems of each level of each family."""
    samples_per_problem: int = Field(default=4, ge=1)
    """k of avg@k."""
    temperature: float = Field(default=1.0, ge=0.0, le=5.0)
    """Sampling temperature (report: 1.0); 0 is greedy."""
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)
    """Nucleus mass (report: 0.95)."""
    seed_offset: int = Field(default=1_000_000, ge=1)
    """Added to the seed, so that benchmark problems are never training problems."""
    margin: float = Field(default=0.01, ge=0.0)
    """E8 blocks when the paired change is below -margin with 95% confidence."""


class Recipe(Contract):
    """One run of the whole path, resolved and complete."""

    name: str = Field(min_length=1, max_length=60, pattern=r"^[a-z0-9][a-z0-9.-]*$")
    """Name of the recipe; also of the pipeline."""
    version: str = Field(default="1", pattern=r"^[0-9]+(\.[0-9]+)*$")
    """Version of the recipe; raise it when the values change."""
    description: str = Field(default="", max_length=500)
    """What the recipe is for."""
    seed: int = Field(default=0, ge=0, le=2**31 - 1)
    """Every random stream of the run derives from it."""
    model: ModelConfig = Field(default_factory=ModelConfig)
    """Architecture."""
    engine: EngineConfig = Field(default_factory=TorchEngine)
    """What trains: plain torch, or DeepSpeed in one or several processes."""
    tokenizer: TokenizerConfig = Field(default_factory=TokenizerConfig)
    """Tokenizer that is trained on the corpus; not used with `start_from`."""
    start_from: StartingPoint | None = None
    """Weights and tokenizer to start from; null starts from fresh ones."""
    data: DataConfig
    """Pretraining corpus."""
    tasks: list[TaskFamily] = Field(min_length=1)
    """Verifiable task families for SFT, RL and the benchmark (disjoint problems)."""
    pretrain: PretrainStage = Field(default_factory=PretrainStage)
    """Continual pretraining."""
    extension: list[ExtensionStage] = Field(min_length=1, max_length=8)
    """Context-extension stages in order (the report has four)."""
    sft: SFTStage = Field(default_factory=SFTStage)
    """Supervised fine-tuning."""
    rl: RLStage = Field(default_factory=RLStage)
    """Reinforcement learning."""
    rollout: RolloutConfig = Field(default_factory=RolloutConfig)
    """Sampling during RL."""
    rewards: RewardConfig = Field(default_factory=RewardConfig)
    """Reward components."""
    ladder: LadderConfig = Field(default_factory=LadderConfig)
    """Staged length expansion."""
    quality: QualityConfig = Field(default_factory=QualityConfig)
    """Quality gates."""
    resources: StageResources = Field(default_factory=StageResources)
    """Resources by kind of task."""
    benchmark: BenchmarkConfig = Field(default_factory=BenchmarkConfig)
    """Benchmark."""
    provenance: dict[str, str] = Field(default_factory=dict)
    """Where values come from, by dotted field: disclosed, inherited, borrowed or chosen."""

    @field_validator("engine", mode="before")
    @classmethod
    def _torch_unless_said(cls, value: Any) -> Any:
        if isinstance(value, dict) and "kind" not in value:
            return {"kind": "torch", **value}
        return value

    @model_validator(mode="after")
    def _vocabulary_matches(self) -> Self:
        if not self.start_from and self.tokenizer.vocab_size > self.model.vocab_size:
            raise ValueError(
                f"tokenizer.vocab_size={self.tokenizer.vocab_size} exceeds model.vocab_size="
                f"{self.model.vocab_size}; raise model.vocab_size"
            )
        return self

    @model_validator(mode="after")
    def _windows_grow(self) -> Self:
        previous_window, previous_base = self.pretrain.window, self.model.rope_base
        for number, stage in enumerate(self.extension, start=1):
            if stage.window < previous_window:
                raise ValueError(
                    f"extension stage {number} has window={stage.window}, shorter than the "
                    f"{previous_window} before it; windows may only grow"
                )
            if stage.rope_base < previous_base:
                raise ValueError(
                    f"extension stage {number} has rope_base={stage.rope_base:g}, below the "
                    f"{previous_base:g} before it; the base may only grow with the window"
                )
            previous_window, previous_base = stage.window, stage.rope_base
        longest = self.ladder.windows[-1]
        if longest >= previous_window:
            raise ValueError(
                f"the last ladder window ({longest} tokens) does not fit the extended context "
                f"({previous_window} tokens) with a prompt; lower ladder.scale or extend further"
            )
        return self

    @model_validator(mode="after")
    def _stage_mixtures_are_in_the_corpus(self) -> Self:
        corpus = {domain for domain, share in self.data.mixture.items() if share > 0}
        for number, stage in enumerate(self.extension, start=1):
            wanted = {domain for domain, share in (stage.mixture or {}).items() if share > 0}
            if missing := sorted(wanted - corpus):
                raise ValueError(
                    f"extension stage {number} has a mixture with {missing}, but the corpus "
                    f"(data.mixture) holds only {sorted(corpus)}; give them a share there or leave "
                    "them out of the stage"
                )
        return self

    @model_validator(mode="after")
    def _every_rank_has_work(self) -> Self:
        steps = [
            ("pretrain", self.pretrain.window, self.pretrain.rows_per_step),
            ("sft", self.sft.window, self.sft.rows_per_step),
        ]
        for number, stage in enumerate(self.extension, start=1):
            steps.append((f"extension stage {number}", stage.window, stage.rows_per_step))
        for name, window, rows_per_step in steps:
            rows = max(1, self.engine.microbatch_tokens // window)
            microbatches = -(-rows_per_step // rows)
            if microbatches < self.engine.processes:
                raise ValueError(
                    f"a step of {name} has {microbatches} microbatch(es) of {rows} x "
                    f"{window} tokens for engine.ranks={self.engine.processes}, so ranks "
                    "would idle; lower engine.microbatch_tokens or engine.ranks, or raise "
                    "rows_per_step"
                )
        return self

    @model_validator(mode="after")
    def _families_are_distinct(self) -> Self:
        names = [family.name for family in self.tasks]
        if len(set(names)) != len(names):
            raise ValueError(f"task families must be distinct, got {names}; merge the repeats")
        return self

    @model_validator(mode="after")
    def _model_judged_prompts_have_a_judge(self) -> Self:
        if self.rl.curriculum.model_judged is not None and self.rewards.model is None:
            raise ValueError(
                "rl.curriculum.model_judged is set, but rewards.model is not, so nothing could "
                "judge those prompts; set rewards.model.url and rewards.model.model, or remove "
                "rl.curriculum.model_judged"
            )
        return self

    @model_validator(mode="after")
    def _the_generator_can_run_the_model(self) -> Self:
        if self.rollout.generator.kind != "vllm":
            return self
        obstacle = vllm_obstacle(self.model)
        if obstacle is not None:
            raise ValueError(
                f"rollout.generator.kind=vllm cannot run this model: it {obstacle}; use "
                "rollout.generator.kind=native"
            )
        self._check_vllm_temperatures()
        return self

    def _check_vllm_temperatures(self) -> None:
        low, high = VLLM_TEMPERATURES
        for name, value in (
            ("rollout.temperature", self.rollout.temperature),
            ("benchmark.temperature", self.benchmark.temperature),
        ):
            if value and not low <= value <= high:
                raise ValueError(
                    f"{name}={value} lies outside {low} to {high}, which is what vLLM can sample "
                    "at; change it, or use rollout.generator.kind=native"
                )

    def digest(self) -> str:
        """Digest of the resolved recipe."""
        return digest_of(self.model_dump(mode="json"))

    def compact(self) -> dict[str, Any]:
        """The recipe without values that equal their defaults; `Recipe(**compact)` restores it."""
        values = self.model_dump(mode="json", exclude_defaults=True)
        # The discriminator of a union is needed even where it equals a default.
        if "algorithm" in values.get("rl", {}):
            values["rl"]["algorithm"]["kind"] = self.rl.algorithm.kind
        if "generator" in values.get("rollout", {}):
            values["rollout"]["generator"]["kind"] = self.rollout.generator.kind
        if "engine" in values:
            values["engine"]["kind"] = self.engine.kind
        return values
