"""Training stages: continual pretraining, context extension, SFT and RL."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from schemas.algorithms import AdvantageConfig, Algorithm, CispoConfig
from schemas.audit import AuditConfig
from schemas.base import Contract
from schemas.curriculum import CurriculumConfig
from schemas.data import ProbeConfig, require_distribution
from schemas.generators import GeneratorConfig, NativeGeneratorConfig
from schemas.judging import GenerativeJudgeConfig
from schemas.prompts import PromptSource, SecondPhase
from schemas.rows import Domain
from schemas.verification import JudgingConfig


class OptimizerConfig(Contract):
    """AdamW; the M1 report uses betas (0.9, 0.95) and eps 1e-15 because most gradients are tiny."""

    beta1: float = Field(default=0.9, ge=0.0, lt=1.0)
    """Decay of the first moment."""
    beta2: float = Field(default=0.95, ge=0.0, lt=1.0)
    """Decay of the second moment."""
    eps: float = Field(default=1e-15, gt=0.0, le=1e-3)
    """Added to the root of the second moment."""
    weight_decay: float = Field(default=0.1, ge=0.0)
    """Decoupled weight decay on matrices; norms and biases have none."""
    grad_clip: float = Field(default=1.0, gt=0.0)
    """Largest global gradient norm."""


class StartingPoint(Contract):
    """A Hugging Face checkpoint folder that a run starts from: MiniMax, llama, mistral or qwen."""

    path: str = Field(min_length=1)
    """Folder with config.json, tokenizer.json and safetensors files, readable by every task."""
    digest: str = Field(pattern=r"^sha256:([0-9a-f]{64}|\?)$")
    """Digest of the folder; write `sha256:?` once, and the error says what it is."""


class SpikeConfig(Contract):
    """When a training step counts as a spike, and what is done about it.

    A step is a spike when its loss or its gradient norm is not finite, or lies above the running
    median by both an absolute and a relative margin. The update of a spike is not applied; several
    spikes in a short time roll the stage back to its last good state at a lower learning rate. The
    M1 report found that too aggressive an extension of the window explodes gradients.
    """

    enabled: bool = True
    """Off: every finite gradient is applied."""
    history: int = Field(default=64, ge=8, le=10_000)
    """Good steps that the running median and spread are taken over."""
    warmup_steps: int = Field(default=16, ge=4)
    """Good steps before the running median judges; until then only the loss before the stage and
    finiteness do."""
    norm_ratio: float = Field(default=5.0, gt=1.0)
    """A gradient norm above this many medians may be a spike."""
    loss_jump: float = Field(default=2.0, gt=0.0)
    """A loss this many nats a token above the median may be a spike."""
    deviations: float = Field(default=4.0, gt=0.0)
    """It is one if it also lies this many robust standard deviations above."""
    patience: int = Field(default=3, ge=1)
    """Spikes among the last four times as many steps that cause a back-off."""
    factor: float = Field(default=0.5, gt=0.0, lt=1.0)
    """Each back-off multiplies the learning rate by this."""
    hold_steps: int = Field(default=50, ge=1)
    """Steps at the lower rate after the first back-off; each further one doubles them."""
    max_back_offs: int = Field(default=4, ge=0)
    """The stage fails when it would need more."""
    snapshot_steps: int = Field(default=25, ge=1)
    """Steps between snapshots of weights and optimizer in memory, the states to roll back to."""

    @model_validator(mode="after")
    def _history_holds_the_warm_up(self) -> Self:
        if self.warmup_steps > self.history:
            raise ValueError(
                f"warmup_steps={self.warmup_steps} exceeds history={self.history}, so no step "
                "would ever be judged; lower warmup_steps or raise history"
            )
        return self


class PretrainStage(Contract):
    """Continual pretraining: constant learning rate, then decay."""

    window: int = Field(default=32, ge=8)
    """Row length in tokens."""
    rows_per_step: int = Field(default=64, ge=1)
    """Packed rows in one optimizer step."""
    tokens: int = Field(default=200_000, ge=1)
    """Tokens to train on; the corpus is repeated when it is shorter."""
    learning_rate: float = Field(default=8e-5, gt=0.0)
    """Constant learning rate."""
    final_learning_rate: float = Field(default=8e-6, gt=0.0)
    """Learning rate at the end of the decay."""
    constant_fraction: float = Field(default=1 / 3, ge=0.0, le=1.0)
    """Share of tokens at the constant rate (2.5T of 7.5T in the report)."""
    warmup_steps: int = Field(default=20, ge=0)
    """Linear warm-up steps."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """Optimizer settings."""
    spikes: SpikeConfig = Field(default_factory=SpikeConfig)
    """Watch over loss and gradient norm."""

    @model_validator(mode="after")
    def _decay_goes_down(self) -> Self:
        if self.final_learning_rate > self.learning_rate:
            raise ValueError(
                f"final_learning_rate={self.final_learning_rate} exceeds learning_rate="
                f"{self.learning_rate}; the rate may only decay"
            )
        return self


class ExtensionStage(Contract):
    """One step of context extension; the RoPE base of softmax layers grows with the window."""

    window: int = Field(ge=8)
    """Row length in tokens."""
    rope_base: float = Field(gt=1.0)
    """RoPE base of softmax layers from this stage on."""
    rows_per_step: int = Field(default=8, ge=1)
    """Packed rows in one optimizer step."""
    tokens: int = Field(ge=1)
    """Tokens to train on."""
    learning_rate: float = Field(gt=0.0)
    """Constant learning rate after the warm-up."""
    warmup_steps: int = Field(default=0, ge=0)
    """Linear warm-up steps; the first rows of a longer window have larger gradients."""
    mixture: dict[Domain, float] | None = None
    """Share of tokens by domain in this stage's rows; null: as the corpus is (`data.mixture`)."""
    long_share: float = Field(default=0.4, ge=0.0, le=1.0)
    """Least share of tokens from documents at least half a window long."""
    probes: ProbeConfig | None = None
    """Key-value probes among the rows; null: none."""
    passkey_samples: int = Field(default=4, ge=0)
    """Rows of each length and depth of the passkey probe before and after; 0 leaves it out."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """Optimizer settings."""
    spikes: SpikeConfig = Field(default_factory=SpikeConfig)
    """Watch over loss and gradient norm."""

    @model_validator(mode="after")
    def _mixture_is_a_distribution(self) -> Self:
        if self.mixture is not None:
            require_distribution(self.mixture)
        return self


class SFTStage(Contract):
    """Supervised fine-tuning on chain-of-thought with reflection, loss on the answer side only."""

    examples: int = Field(default=4_000, ge=8)
    """Conversations to generate."""
    window: int = Field(default=128, ge=16)
    """Row length that conversations are packed into."""
    rows_per_step: int = Field(default=16, ge=1)
    """Packed rows in one optimizer step."""
    epochs: float = Field(default=2.0, gt=0.0)
    """Passes over the examples; a fraction stops inside a pass."""
    learning_rate: float = Field(default=1e-3, gt=0.0)
    """Peak learning rate."""
    final_learning_rate: float = Field(default=1e-4, gt=0.0)
    """Learning rate at the end of the cosine."""
    warmup_steps: int = Field(default=10, ge=0)
    """Linear warm-up steps."""
    reflection_share: float = Field(default=0.3, ge=0.0, le=1.0)
    """Share of examples with a wrong step that is noticed ("Wait") and corrected."""
    optimizer: OptimizerConfig = Field(default_factory=OptimizerConfig)
    """Optimizer settings."""
    spikes: SpikeConfig = Field(default_factory=SpikeConfig)
    """Watch over loss and gradient norm."""


class CurationConfig(Contract):
    """RL prompts are kept by the pass rate of the policy that starts RL."""

    candidates: int = Field(default=600, ge=0)
    """Prompts to generate from the recipe's task families before curation; 0 with sources only."""
    sources: list[PromptSource] = Field(default_factory=list)
    """Prompts of your own; what a rule cannot judge is taken out of them."""
    plan: dict[str, int] = Field(default_factory=dict)
    """Most prompts to keep by family, in an order that the seed decides; a family that is not named
    keeps all. The summary compares what is kept with the plan."""
    samples: int = Field(default=4, ge=1)
    """Samples a prompt; the report uses pass@10."""
    pass_rate_above: float = Field(default=0.0, ge=0.0, lt=1.0)
    """Kept only when the pass rate is above this."""
    pass_rate_below: float = Field(default=0.9, gt=0.0, le=1.0)
    """Kept only when the pass rate is below this (report: 0.9)."""
    second_phase: SecondPhase | None = None
    """Another choice of prompts for later rounds; null: the first one stays."""


class RLStage(Contract):
    """Group rollouts, group-normalised advantages, and off-policy updates of one batch."""

    algorithm: Algorithm = Field(default_factory=CispoConfig)
    """The objective."""
    advantage: AdvantageConfig = Field(default_factory=AdvantageConfig)
    """How rewards become advantages."""
    rounds: int = Field(default=6, ge=1, le=64)
    """Rounds that the DAG unrolls; each runs at the window that the expansion gate chose."""
    batches_per_round: int = Field(default=2, ge=2)
    """Generation batches in a round; convergence compares the first with the last."""
    groups_per_batch: int = Field(default=32, ge=1)
    """Prompts in a generation batch."""
    group_size: int = Field(default=8, ge=2)
    """Samples of each prompt (G)."""
    updates_per_batch: int = Field(default=16, ge=1)
    """Off-policy optimizer updates of each generation batch (report: 16)."""
    learning_rate: float = Field(default=1e-4, gt=0.0)
    """Constant learning rate."""
    optimizer: OptimizerConfig = Field(default_factory=lambda: OptimizerConfig(weight_decay=0.0))
    """Optimizer settings."""
    dynamic_sampling: bool = True
    """Drop groups whose rewards have no spread and refill the batch."""
    max_refills: int = Field(default=3, ge=0)
    """Extra generation waves to refill a batch that lost groups without spread."""
    exhaustion: Literal["smaller_batch", "skip", "stop"] = "smaller_batch"
    """When groups are still missing after the last refill: learn from those there are, leave the
    batch out, or stop the run."""
    truncated: Literal["score", "exclude"] = "score"
    """Answers that were cut off at the window: trained on with their reward, or left out of the
    loss and of its denominator (their rewards still count in the group's mean)."""
    maximum_bad_updates: int = Field(default=3, ge=1)
    """As many updates in a row in which something was not finite stop the run."""
    curriculum: CurriculumConfig = Field(default_factory=CurriculumConfig)
    """Which prompts a batch draws."""
    audit: AuditConfig = Field(default_factory=AuditConfig)
    """What is measured about updates."""
    curation: CurationConfig = Field(default_factory=CurationConfig)
    """How prompts are chosen before round 1."""
    minimum_probability_correlation: float = Field(default=0.99, ge=-1.0, le=1.0)
    """Stop when sampler and trainer probabilities correlate less than this."""

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Self:
        if not self.dynamic_sampling:
            for name in ("max_refills", "exhaustion"):
                value, default = getattr(self, name), RLStage.model_fields[name].default
                if value != default:
                    raise ValueError(
                        f"{name}={value} means nothing with dynamic_sampling=false, which keeps "
                        "every group; remove it"
                    )
        last = self.rounds
        ramps = dict(self.curriculum.families)
        late = [name for name, ramp in ramps.items() if ramp.first_round > last]
        if self.curation.second_phase and self.curation.second_phase.first_round > last:
            late.append("curation.second_phase")
        if self.curriculum.model_judged and self.curriculum.model_judged.first_round > last:
            late.append("model_judged")
        if late:
            raise ValueError(
                f"curriculum: {', '.join(late)} would begin after the last of {last} rounds; lower "
                "first_round or raise rounds"
            )
        return self

    @model_validator(mode="after")
    def _updates_divide_the_batch(self) -> Self:
        sequences = self.groups_per_batch * self.group_size
        if self.updates_per_batch > sequences:
            raise ValueError(
                f"updates_per_batch={self.updates_per_batch} exceeds the {sequences} sequences of "
                f"a batch (groups_per_batch={self.groups_per_batch} x group_size="
                f"{self.group_size}); lower updates_per_batch or enlarge the batch"
            )
        return self


class RolloutConfig(Contract):
    """How answers are sampled in RL."""

    generator: GeneratorConfig = Field(default_factory=NativeGeneratorConfig)
    """What samples: the training process itself, or a vLLM server."""

    temperature: float = Field(default=1.0, gt=0.0, le=5.0)
    """Sampling temperature."""
    top_p: float = Field(default=1.0, ge=1.0, le=1.0)
    """Always 1 in RL: the trainer's log-probabilities are over the whole vocabulary, so a nucleus
    would make sampler and trainer two different policies."""
    max_batch: int = Field(default=256, ge=1)
    """Sequences decoded together."""
    repetition_run: int = Field(default=0, ge=0)
    """Stop after this many consecutive tokens above the threshold (report: 3000); 0 is off."""
    repetition_threshold: float = Field(default=0.99, gt=0.0, lt=1.0)
    """Probability above which a token counts towards the run."""


class RewardConfig(Contract):
    """Reward components; "could not be judged" is never a reward."""

    correct: float = Field(default=1.0, gt=0.0)
    """Reward of an answer that the verifier accepts."""
    partial_credit: bool = False
    """Whether an answer that a rule scores in part (some of a program's tests) earns that part of
    `correct`; it is not right all the same. A reward model's score always counts so."""
    well_formed: float = Field(default=0.0, ge=0.0)
    """Reward of exactly one <think>...</think> followed by a non-empty answer."""
    overlong_share: float = Field(default=0.2, ge=0.0, lt=1.0)
    """The soft overlong penalty ramps up over this last share of the window; 0 is off."""
    overlong: float = Field(default=1.0, ge=0.0)
    """Penalty of an answer that reaches the window (DAPO: 1)."""
    repetition_is_overlong: bool = False
    """Whether an answer that the repetition rule stopped gets the whole overlong penalty, however
    short it is; otherwise its length decides, as for any other."""
    least: float | None = Field(default=None, le=0.0)
    """A sum of components below this is raised to it; null: never."""
    maximum_unjudged_share: float = Field(default=0.01, ge=0.0, le=1.0)
    """A batch with more unjudged samples is blocked."""
    model: GenerativeJudgeConfig | None = None
    """The model that judges prompts which rules cannot judge; null: there are none."""
    judging: JudgingConfig = Field(default_factory=JudgingConfig)
    """Deadlines, processes and the sandbox of verifiers."""

    @model_validator(mode="after")
    def _the_floor_is_ever_reached(self) -> Self:
        if self.least is not None and self.least <= -self.overlong:
            raise ValueError(
                f"least={self.least:g} is never reached with overlong={self.overlong:g}, the only "
                "component below 0; raise it, or remove it"
            )
        return self

    @model_validator(mode="after")
    def _the_penalty_is_ever_paid(self) -> Self:
        default = RewardConfig.model_fields["overlong"].default
        paid = self.overlong_share or self.repetition_is_overlong
        if self.overlong != default and not paid:
            raise ValueError(
                f"overlong={self.overlong} is never paid with overlong_share=0, which turns the "
                "penalty off; set overlong_share, or remove overlong"
            )
        return self
