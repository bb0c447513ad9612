"""What is cleaned out of a pretraining corpus, by which rule, and where the rule comes from."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, field_validator, model_validator

from schemas.base import Contract
from schemas.rows import Domain

ProseMeasure = Literal[
    "words",
    "mean_word_length",
    "symbol_word_ratio",
    "bullet_line_share",
    "ellipsis_line_share",
    "alphabetic_word_share",
    "stop_words",
    "duplicate_line_share",
    "duplicate_line_character_share",
    "duplicate_paragraph_share",
    "duplicate_paragraph_character_share",
    "duplicate_character_share",
    "short_line_share",
    "newline_word_ratio",
    "punctuated_line_share",
    "top_2gram_share",
    "top_3gram_share",
    "top_4gram_share",
    "duplicate_5gram_share",
    "duplicate_6gram_share",
    "duplicate_7gram_share",
    "duplicate_8gram_share",
    "duplicate_9gram_share",
    "duplicate_10gram_share",
]
"""A measure of one document of prose."""


class Limit(Contract):
    """The values of a measure with which a document stays; both ends belong to them."""

    minimum: float | None = None
    """Least value; null: none."""
    maximum: float | None = None
    """Greatest value; null: none."""

    @model_validator(mode="after")
    def _ends_ascend(self) -> Self:
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(
                f"minimum={self.minimum:g} is above maximum={self.maximum:g}; nothing could stay"
            )
        return self


class RuleSet(Contract):
    """Limits of measures of prose; a document outside one of them is dropped by its name."""

    DEFAULTS: ClassVar[dict[str, Limit]] = {}

    domains: list[Domain] = Field(default_factory=list)
    """Domains whose documents are measured; an empty list turns the rules off. Generated problems
    never are."""
    limits: dict[ProseMeasure, Limit] = Field(default_factory=dict)
    """Limits by measure. One that is not named keeps its default; `{}` lifts it."""

    @field_validator("limits", mode="before")
    @classmethod
    def _defaults_stay(cls, value: Any) -> Any:
        return {**cls.DEFAULTS, **value} if isinstance(value, dict) else value


def _prose() -> list[Domain]:
    return ["stem", "book", "web"]


def _web() -> list[Domain]:
    return ["web"]


def _all_domains() -> list[Domain]:
    return ["stem", "code", "book", "reasoning", "web"]


class GopherQuality(RuleSet):
    """Quality rules of Gopher (arXiv 2112.11446, table A1), as datatrove has them."""

    DEFAULTS: ClassVar[dict[str, Limit]] = {
        "words": Limit(minimum=50, maximum=100_000),
        "mean_word_length": Limit(minimum=3, maximum=10),
        "symbol_word_ratio": Limit(maximum=0.1),
        "bullet_line_share": Limit(maximum=0.9),
        "ellipsis_line_share": Limit(maximum=0.3),
        "alphabetic_word_share": Limit(minimum=0.8),
        "stop_words": Limit(minimum=2),
    }
    domains: list[Domain] = Field(default_factory=_prose)
    """Domains that the rules hold for."""
    limits: dict[ProseMeasure, Limit] = Field(default_factory=dict, validate_default=True)
    """Limits by measure; those not named keep Gopher's."""


class GopherRepetition(RuleSet):
    """Repetition rules of Gopher (arXiv 2112.11446, table A1), as datatrove has them."""

    DEFAULTS: ClassVar[dict[str, Limit]] = {
        "duplicate_line_share": Limit(maximum=0.30),
        "duplicate_paragraph_share": Limit(maximum=0.30),
        "duplicate_line_character_share": Limit(maximum=0.20),
        "duplicate_paragraph_character_share": Limit(maximum=0.20),
        "top_2gram_share": Limit(maximum=0.20),
        "top_3gram_share": Limit(maximum=0.18),
        "top_4gram_share": Limit(maximum=0.16),
        "duplicate_5gram_share": Limit(maximum=0.15),
        "duplicate_6gram_share": Limit(maximum=0.14),
        "duplicate_7gram_share": Limit(maximum=0.13),
        "duplicate_8gram_share": Limit(maximum=0.12),
        "duplicate_9gram_share": Limit(maximum=0.11),
        "duplicate_10gram_share": Limit(maximum=0.10),
    }
    domains: list[Domain] = Field(default_factory=_prose)
    """Domains that the rules hold for."""
    limits: dict[ProseMeasure, Limit] = Field(default_factory=dict, validate_default=True)
    """Limits by measure; those not named keep Gopher's."""


class FineWebQuality(RuleSet):
    """Line rules of FineWeb (arXiv 2406.17557), tuned on crawled pages, as datatrove has them."""

    DEFAULTS: ClassVar[dict[str, Limit]] = {
        "punctuated_line_share": Limit(minimum=0.12),
        "short_line_share": Limit(maximum=0.67),
        "duplicate_character_share": Limit(maximum=0.01),
        "newline_word_ratio": Limit(maximum=0.3),
    }
    domains: list[Domain] = Field(default_factory=_web)
    """Domains that the rules hold for."""
    limits: dict[ProseMeasure, Limit] = Field(default_factory=dict, validate_default=True)
    """Limits by measure; those not named keep FineWeb's."""


class LanguageRule(Contract):
    """Language of prose by py3langid."""

    domains: list[Domain] = Field(default_factory=_prose)
    """Domains whose documents must be in one of the languages; an empty list turns it off."""
    languages: list[str] = Field(default_factory=lambda: ["en"], min_length=1)
    """ISO 639-1 codes that stay."""
    minimum_probability: float = Field(default=0.65, ge=0.0, le=1.0)
    """Least probability of the language (FineWeb and datatrove: 0.65, of fastText)."""


class NearDuplicateRule(Contract):
    """MinHash near-duplicates: word 5-grams, 14 bands of 8, exact Jaccard >= 0.72 (datatrove)."""

    domains: list[Domain] = Field(default_factory=_all_domains)
    """Domains whose documents are compared with all earlier ones of these; an empty list turns it
    off. Generated problems, which share their template, are never compared."""


class HeldOutText(Contract):
    """Problems of an evaluation that no training text may hold."""

    name: str = Field(min_length=1, pattern=r"^[a-z0-9][a-z0-9_-]*$")
    """Name in reports; problems of one set count as one family with a common template."""
    uri: str = Field(min_length=1)
    """Where they are: as a `files` source."""
    text_field: str = "text"
    """Column or key that holds the problem."""


class ContaminationRule(Contract):
    """Held-out problems in training text: whole anywhere, or a distinctive word n-gram of one.

    Words are compared in lower case; punctuation counts for whole problems (3 - 4 is not 3 + 4)
    and is left out of n-grams.
    """

    domains: list[Domain] = Field(default_factory=_all_domains)
    """Domains whose documents are searched; an empty list turns it off. Generated problems are
    searched for whole ones only."""
    ngram: int = Field(default=12, ge=4, le=64)
    """Words of an n-gram (datatrove: 12; GPT-3: 13)."""
    held_out: list[HeldOutText] = Field(default_factory=list)
    """Evaluations besides the recipe's own benchmark, which always counts."""


class PersonalDataRule(Contract):
    """E-mail and IP addresses, put out of sight but left in their sentence (datatrove, dolma)."""

    domains: list[Domain] = Field(default_factory=_all_domains)
    """Domains whose documents are mended; an empty list turns it off. Generated ones never are."""
    emails: bool = True
    """Replace e-mail addresses by email@example.com, a reserved one."""
    ip_addresses: bool = True
    """Replace public IPv4 addresses by 192.0.2.1, a reserved one."""


class CleaningConfig(Contract):
    """How text is cleaned between reading and mixing. Every rule has its off-switch."""

    secrets: Literal["quarantine", "keep"] = "quarantine"
    """Rows that hold a private key or an access token of a well-known form, of any domain."""
    personal_data: PersonalDataRule = Field(default_factory=PersonalDataRule)
    """Addresses that are replaced."""
    language: LanguageRule = Field(default_factory=LanguageRule)
    """Language of prose."""
    gopher_quality: GopherQuality = Field(default_factory=GopherQuality)
    """Rules of what reads like prose."""
    gopher_repetition: GopherRepetition = Field(default_factory=GopherRepetition)
    """Rules of what repeats itself."""
    fineweb: FineWebQuality = Field(default_factory=FineWebQuality)
    """Rules of what has the lines of a text."""
    contamination: ContaminationRule = Field(default_factory=ContaminationRule)
    """Held-out problems."""
    near_duplicates: NearDuplicateRule = Field(default_factory=NearDuplicateRule)
    """Documents that nearly repeat an earlier one."""
    samples: int = Field(default=20, ge=0, le=10_000)
    """Dropped documents that are kept for inspection, of each reason."""


def nothing() -> CleaningConfig:
    """The rules with every one of them turned off."""
    return CleaningConfig(
        secrets="keep",
        personal_data=PersonalDataRule(domains=[]),
        language=LanguageRule(domains=[]),
        gopher_quality=GopherQuality(domains=[]),
        gopher_repetition=GopherRepetition(domains=[]),
        fineweb=FineWebQuality(domains=[]),
        contamination=ContaminationRule(domains=[]),
        near_duplicates=NearDuplicateRule(domains=[]),
    )
