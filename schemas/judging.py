"""A model as judge of what rules cannot judge: endpoint, judgments, shaping, length watch."""

from __future__ import annotations

from typing import Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import Field, field_validator, model_validator

from schemas.base import Contract

CONSISTENCY = "consistency"
"""Verifier name of prompts whose answer is graded against their reference answer."""
PAIRWISE = "pairwise"
"""Verifier name of prompts whose answer is compared with their reference answer."""
MODEL_VERIFIERS = (CONSISTENCY, PAIRWISE)
GRADES = (1, 2, 3, 4, 5)

_SET_BY_US = frozenset(
    {"model", "messages", "seed", "temperature", "top_p", "max_tokens", "n", "stream", "stop"}
)


class JudgeSampling(Contract):
    """How the judge's own text is sampled."""

    temperature: float = Field(default=0.6, ge=0.0, le=2.0)
    """Sampling temperature; above 0, so that repeated judgments are independent draws."""
    top_p: float = Field(default=0.95, gt=0.0, le=1.0)
    """Nucleus mass."""
    max_tokens: int = Field(default=2048, ge=16)
    """Longest reply, the judge's own thinking included."""
    extra: dict[str, Any] = Field(default_factory=dict)
    """Further fields of the request, for example `chat_template_kwargs`."""

    @field_validator("extra")
    @classmethod
    def _extra_adds(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_SET_BY_US & value.keys()):
            raise ValueError(
                f"extra sets {taken}, which follow from other fields; remove them from extra"
            )
        return value


class JudgeLimits(Contract):
    """Time, tries and money."""

    concurrency: int = Field(default=32, ge=1, le=1024)
    """Submissions judged at a time, each with one request in flight."""
    request_seconds: float = Field(default=120.0, gt=0.0)
    """Longest time of one request."""
    submission_seconds: float = Field(default=600.0, gt=0.0)
    """Longest time of one submission, all its requests, repeats and waits together."""
    retries: int = Field(default=4, ge=0, le=20)
    """Further tries of a request after 429, 5xx or a broken connection."""
    backoff_seconds: float = Field(default=0.5, gt=0.0)
    """Wait before the first retry; it doubles, up to 30 s, and half of it is random."""
    outage_failures: int = Field(default=16, ge=1)
    """As many requests in a row that stay unanswered, retries included, are an outage."""
    outage_seconds: float = Field(default=30.0, ge=0.0)
    """For so long an endpoint with an outage is not asked: submissions are unavailable at once."""
    reasks: int = Field(default=2, ge=0, le=10)
    """Further requests, each with another seed, after a refusal or an unreadable verdict."""
    max_calls: int | None = Field(default=None, ge=1)
    """Requests that one directory of judgments may make in all; null: no limit."""
    max_tokens: int | None = Field(default=None, ge=1)
    """Prompt and reply tokens that it may spend in all; requests in flight may overshoot it."""
    candidate_characters: int = Field(default=60_000, ge=100)
    """The judge reads this much of an answer; what lies beyond earns nothing."""


class ConsistencyConfig(Contract):
    """Grades 1 to 5 of an answer's agreement with the reference answer."""

    values: list[float] = Field(default=[0.0, 0.25, 0.5, 0.75, 1.0], min_length=5, max_length=5)
    """Quality of grades 1 to 5, ascending from 0 to 1."""
    correct_grade: int = Field(default=4, ge=2, le=5)
    """Lowest grade that counts as right."""
    repeats: int = Field(default=1, ge=1, le=15)
    """Independent judgments of an answer; the median counts."""
    spread: int = Field(default=1, ge=0, le=4)
    """Largest difference between the grades of one answer; more is a disagreement."""

    @field_validator("values")
    @classmethod
    def _ascending(cls, value: list[float]) -> list[float]:
        if sorted(set(value)) != value or value[0] < 0.0 or value[-1] > 1.0:
            raise ValueError(f"values={value} must ascend within 0 to 1, one for each grade")
        return value


class PairwiseConfig(Contract):
    """Worse (-1), as good (0) or better (+1) than the reference answer."""

    repeats: int = Field(default=2, ge=1, le=15)
    """Independent judgments in each of the two orders."""
    agreement: float = Field(default=1.0, gt=0.5, le=1.0)
    """Least share of the judgments that must say the same. Above a half, so that a judge that goes
    by the order can never decide."""
    disagreement: Literal["tie", "not_judged"] = "tie"
    """What too little agreement means: as good as the reference, or no judgment."""
    correct: Literal["better", "not_worse"] = "not_worse"
    """Which outcomes count as right."""


class Moments(Contract):
    """Mean and standard deviation of a family's judged quality."""

    mean: float = Field(ge=0.0, le=1.0)
    """Mean."""
    deviation: float = Field(gt=0.0)
    """Standard deviation."""


class ShapingConfig(Contract):
    """From judged quality to the value that is learnt from."""

    normalise: Literal["none", "fixed", "running"] = "none"
    """Centre and scale by family: not at all, by given moments, or by those of earlier batches."""
    moments: dict[str, Moments] = Field(default_factory=dict)
    """Moments by family, for `fixed`."""
    deviations: float = Field(default=3.0, gt=0.0)
    """Normalised values are clipped here, and 0 to 1 stands for minus to plus this many."""
    warmup: int = Field(default=64, ge=2)
    """Judged answers of a family before its running moments are used."""
    low: float = Field(default=0.0, ge=0.0, le=1.0)
    """Lowest value."""
    high: float = Field(default=1.0, ge=0.0, le=1.0)
    """Highest value."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Factor from 0 to 1 by family; 1 where not named."""

    @field_validator("weights")
    @classmethod
    def _weights_keep_the_scale(cls, value: dict[str, float]) -> dict[str, float]:
        if outside := {name: weight for name, weight in value.items() if not 0 <= weight <= 1}:
            raise ValueError(f"weights {outside} lie outside 0 to 1; scale the others down instead")
        return value

    @model_validator(mode="after")
    def _settings_fit(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low={self.low} is not below high={self.high}; swap or change them")
        if (self.normalise == "fixed") != bool(self.moments):
            raise ValueError(
                f"normalise={self.normalise} with moments of {len(self.moments)} families; moments "
                "belong to `fixed`, and it needs them"
            )
        return self


class LengthWatchConfig(Contract):
    """When reward that goes with length at equal verified quality triggers a recalibration."""

    enabled: bool = True
    """Off: nothing is watched or adjusted."""
    of: Literal["answer", "sample"] = "answer"
    """Whose length: characters of the answer, which is what the judge reads, or sampled tokens,
    thinking included."""
    anchor_prompts: int = Field(default=8, ge=0)
    """Prompts of a generation batch that rules have judged and whose answers the model grades too:
    only where quality is verified can a bias be told from it."""
    tolerance: float = Field(default=0.1, ge=0.0, lt=1.0)
    """A partial correlation up to this size is let be."""
    false_alarm_rate: float = Field(default=0.01, gt=0.0, lt=0.5)
    """Chance of any alarm on an endless stream of all families within the tolerance."""
    block: int = Field(default=64, ge=8)
    """Verified samples of a family between two looks."""
    window_blocks: int = Field(default=16, ge=1, le=256)
    """Longest window in blocks; shorter ones, by halves, are looked at too. A power of two."""
    maximum_correction: float = Field(default=0.5, gt=0.0, le=1.0)
    """A recalibration moves a value by no more than this."""

    @field_validator("window_blocks")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError(f"window_blocks={value} is not a power of two; use one, such as 16")
        return value


class ProbeConfig(Contract):
    """Padded but worse answers that a healthy judge does not prefer."""

    items: int = Field(default=30, ge=1)
    """Prompts of each kind of judgment that probes are made of."""
    maximum_preferred: float = Field(default=0.1, ge=0.0, lt=1.0)
    """Largest share of the probes of one kind that the judge may prefer."""
    maximum_unjudged: float = Field(default=0.2, ge=0.0, lt=1.0)
    """Largest share of the probes that it may fail to judge."""


class GenerativeJudgeConfig(Contract):
    """A model behind an OpenAI-compatible endpoint that judges answers."""

    url: str = Field(pattern=r"^https?://[^/\s@?#]+(/[^\s?#]*)?$")
    """The server, with or without /v1 at the end, without credentials."""
    model: str = Field(min_length=1)
    """Name of the served model; part of the cache's key, so change it when the weights change."""
    api_key_variable: str | None = Field(default=None, pattern=r"^[A-Z][A-Z0-9_]*$")
    """Environment variable with the key; null sends none."""
    sampling: JudgeSampling = Field(default_factory=JudgeSampling)
    """How the judge's text is sampled."""
    limits: JudgeLimits = Field(default_factory=JudgeLimits)
    """Time, tries and money."""
    consistency: ConsistencyConfig = Field(default_factory=ConsistencyConfig)
    """Grades against a reference answer."""
    pairwise: PairwiseConfig = Field(default_factory=PairwiseConfig)
    """Comparison with a reference answer."""
    shaping: ShapingConfig = Field(default_factory=ShapingConfig)
    """From quality to value."""
    length: LengthWatchConfig = Field(default_factory=LengthWatchConfig)
    """Watch over length bias."""
    probe: ProbeConfig = Field(default_factory=ProbeConfig)
    """Probes before RL begins."""

    @field_validator("url")
    @classmethod
    def _url_can_be_called(cls, value: str) -> str:
        try:
            port = urlsplit(value).port
        except ValueError:
            port = 0
        if port == 0 or not value.isascii():
            raise ValueError(f"url={value} has a port or characters that no request can hold")
        return value


class LabelledAnswer(Contract):
    """One answer that people have judged, for calibration."""

    id: str = Field(min_length=1)
    """Stable identifier."""
    prompt_id: str = Field(min_length=1)
    """The problem; answers of one problem are one cluster, and one best-of-n group."""
    prompt: str = Field(min_length=1)
    """The problem's text."""
    reference: str = Field(min_length=1)
    """Reference answer."""
    answer: str
    """The answer that was judged."""
    family: str = "labelled"
    """Task family."""
    verifier: Literal["consistency", "pairwise"] = "consistency"
    """Kind of judgment."""
    label: int
    """People's grade from 1 to 5, or -1, 0 or 1 for `pairwise`."""
    correct: bool | None = None
    """Whether the answer is right, for the best-of-n gap; null: not known."""

    @model_validator(mode="after")
    def _label_is_on_its_scale(self) -> Self:
        scale = GRADES if self.verifier == CONSISTENCY else (-1, 0, 1)
        if self.label not in scale:
            raise ValueError(f"label={self.label} of a {self.verifier} answer is not in {scale}")
        return self
