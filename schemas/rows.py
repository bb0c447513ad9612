"""Row types: what one line of each artifact holds."""

from __future__ import annotations

from typing import Any, Literal, Self

from pydantic import Field, model_validator

from schemas.base import Contract

Domain = Literal["stem", "code", "book", "reasoning", "web"]
FinishReason = Literal["stop", "length", "repetition"]


class Document(Contract):
    """One document of the pretraining corpus."""

    id: str = Field(min_length=1)
    """Stable identifier, unique within the corpus."""
    text: str
    """The text, valid UTF-8 without NUL."""
    domain: Domain
    """The mixture share that the document counts towards."""
    source: str = Field(min_length=1)
    """Name of the source in the recipe."""
    path: str = ""
    """Where inside the source the text came from: file and row."""
    offset: int | None = Field(default=None, ge=0)
    """Byte of the (decompressed) file where the row begins, in formats that have one."""
    sha256: str = ""
    """Digest of the normalised text, for exact de-duplication."""


class PackedRow(Contract):
    """Side record of one packed row of exactly `window` tokens; tensors are stored beside it."""

    id: str = Field(min_length=1)
    """Stable identifier of the row."""
    window: int = Field(ge=1)
    """Row length in tokens."""
    documents: list[str] = Field(min_length=1)
    """Documents (or chat examples) in the row, in order."""
    longest_document_tokens: int = Field(ge=1)
    """Tokens of the longest document part in the row."""
    domain_tokens: dict[str, int]
    """Tokens of the row by domain."""
    padding_tokens: int = Field(default=0, ge=0)
    """Tokens of padding on the right."""
    target_tokens: int = Field(ge=0)
    """Tokens with loss_mask 1."""
    truncated_documents: int = Field(default=0, ge=0)
    """Documents of the row that were cut to fit."""


class Message(Contract):
    """One turn of a conversation."""

    role: Literal["system", "user", "assistant"]
    """Who speaks."""
    content: str
    """What is said; assistant turns carry <think>...</think> before the answer."""


class ChatExample(Contract):
    """One supervised conversation."""

    id: str = Field(min_length=1)
    """Stable identifier."""
    messages: list[Message] = Field(min_length=2)
    """Optional system turn, then alternating user and assistant, ending with the assistant."""
    family: str
    """Task family, for the mixture and for reports."""
    domain: Domain = "reasoning"
    """Mixture share."""
    reflection: bool = False
    """Whether the answer holds a reflection (a wrong step that is noticed and corrected)."""


class RLPrompt(Contract):
    """One prompt with a verifiable answer."""

    id: str = Field(min_length=1)
    """Stable identifier."""
    prompt: str = Field(min_length=1)
    """The user turn."""
    answer: str
    """The reference answer, which must verify against itself."""
    family: str
    """Task family (a reasoning-gym dataset name, or the user's)."""
    verifier: str
    """Name of the verifier that scores an answer."""
    entry: dict[str, Any]
    """What the verifier needs to score: the generator's own record of the problem."""
    level: int = Field(default=0, ge=0)
    """Difficulty, ascending; the benchmark groups by it."""
    pass_rate: float | None = Field(default=None, ge=0.0, le=1.0)
    """Share of correct samples by the curating policy, when measured."""
    judge: Literal["rule", "model"] = "rule"
    """Whether a rule or a reward model judges its answers; the curriculum mixes the two."""


class Rollout(Contract):
    """One sampled answer with everything the update and the audit need."""

    prompt_id: str
    """The prompt it answers."""
    family: str = ""
    """Task family of the prompt."""
    group: int = Field(ge=0)
    """Group index within the batch; a group is all samples of one prompt."""
    sample: int = Field(ge=0)
    """Sample index within the group."""
    batch: int = Field(ge=0)
    """Generation batch within the round."""
    prompt_tokens: list[int]
    """Token ids of the rendered prompt."""
    tokens: list[int]
    """The exact sampled token ids, never re-encoded from text."""
    logprobs: list[float | None]
    """Log-probability of each sampled token under the sampler, float32; null when not finite."""
    trainer_logprobs: list[float] = Field(default_factory=list)
    """Log-probability of each sampled token recomputed by the trainer before its first update."""
    importance_weights: list[float] = Field(default_factory=list)
    """Importance weight of each token in the last update that used it, before the cap."""
    text: str
    """The decoded answer, for people."""
    finish_reason: FinishReason
    """Why sampling ended."""
    reward: float | None
    """Total reward; null when the answer could not be judged, which is never reward 0."""
    rewards: dict[str, float] = Field(default_factory=dict)
    """Reward by component, before summing."""
    correct: bool | None = None
    """Whether the verifier accepted the answer; null when not judged."""
    not_judged: str | None = None
    """Kind of failure that kept it from being judged, for example `timeout`; null when judged."""
    advantage: float | None = None
    """Group-normalised advantage; null when the group was dropped."""
    window: int = Field(ge=1)
    """Output window the sample was drawn under."""
    policy_version: int = Field(default=0, ge=0)
    """Version of the weights that sampled it: optimizer steps of the round before them."""

    @model_validator(mode="after")
    def _lengths_agree(self) -> Self:
        if len(self.tokens) != len(self.logprobs):
            raise ValueError(
                f"rollout {self.prompt_id}/{self.sample}: {len(self.tokens)} tokens but "
                f"{len(self.logprobs)} log-probabilities"
            )
        return self


class EvalSample(Contract):
    """One scored benchmark sample."""

    prompt_id: str
    """The benchmark problem."""
    family: str
    """Task family."""
    level: int
    """Difficulty level."""
    sample: int = Field(ge=0)
    """Sample index of the problem."""
    correct: bool | None
    """Whether the verifier accepted; null when it could not judge."""
    not_judged: str | None = None
    """Kind of failure that kept it from being judged; null when judged."""
    length: int = Field(ge=0)
    """Sampled tokens."""
    finish_reason: FinishReason
    """Why sampling ended."""
    text: str = ""
    """The decoded answer."""


class Interval(Contract):
    """A mean with its 95% confidence interval over problems (Student t, clustered by problem)."""

    mean: float
    """The estimate."""
    low: float
    """Lower end of the 95% interval."""
    high: float
    """Upper end of the 95% interval."""
    problems: int = Field(ge=0)
    """Number of clusters (problems)."""
    samples: int = Field(ge=0)
    """Number of samples in all."""


class EvalResult(Contract):
    """avg@k of one checkpoint on the benchmark."""

    label: str
    """Which model this is, for example `sft` or `rl`."""
    checkpoint_digest: str
    """Digest of the weights that were evaluated."""
    samples_per_problem: int = Field(ge=1)
    """k of avg@k."""
    temperature: float
    """Sampling temperature."""
    top_p: float
    """Nucleus mass."""
    window: int
    """Output window in tokens."""
    prompt_set_digest: str
    """Digest of the problems, so that two results can be compared only when it is equal."""
    verifier_version: str
    """Version of the scoring package."""
    average: Interval
    """avg@k over all problems."""
    by_family: dict[str, Interval]
    """avg@k by task family."""
    by_level: dict[str, Interval]
    """avg@k by `family/level`."""
    length_p50: float
    """Median sampled length in tokens."""
    length_p99: float
    """99th percentile of sampled length in tokens."""
    truncated_share: float
    """Share of samples that ended at the window."""
    unjudged_share: float
    """Share of samples that no verifier could judge."""
    problem_means: dict[str, float]
    """Mean correctness by problem, for paired comparisons."""
