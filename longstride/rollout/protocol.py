"""What a generator is: prompts in, samples with their log-probabilities out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

from longstride.errors import DataError
from longstride.rollout.stop_text import StopText

if TYPE_CHECKING:
    from longstride.model.hybrid import HybridModel

FinishReason = Literal["stop", "length", "repetition"]
Progress = Callable[[int, int], None]
"""Called with (samples finished, samples in all)."""


@dataclass(frozen=True)
class SamplingSettings:
    """How to sample; checked on construction."""

    max_new_tokens: int
    """Output window in tokens."""
    temperature: float = 1.0
    """Divides the logits; 0 is greedy."""
    top_p: float = 1.0
    """Sample from the smallest set of tokens whose probability reaches this."""
    stop_ids: tuple[int, ...] = ()
    """Tokens that end a sample; the stop token is part of the sample."""
    stop_text: StopText | None = None
    """Strings that end a sample, wherever token boundaries fall."""
    repetition_run: int = 0
    """End a sample after this many consecutive tokens above the threshold; 0 turns it off."""
    repetition_threshold: float = 0.99
    """Probability that a token must exceed to count as a repetition."""

    def __post_init__(self) -> None:
        """Refuse values that have no meaning."""
        rules = {
            "max_new_tokens": (self.max_new_tokens >= 1, "at least 1"),
            "temperature": (0.0 <= self.temperature < float("inf"), "finite and at least 0"),
            "top_p": (0.0 < self.top_p <= 1.0, "above 0 and at most 1"),
            "repetition_run": (self.repetition_run >= 0, "at least 0; 0 turns the rule off"),
            "repetition_threshold": (0.0 <= self.repetition_threshold <= 1.0, "a probability"),
        }
        for name, (holds, rule) in rules.items():
            if not holds:
                raise ValueError(f"{name}={getattr(self, name)} must be {rule}")


@dataclass(frozen=True)
class Sample:
    """One sampled continuation."""

    tokens: list[int]
    """The exact ids drawn, the stop token included."""
    logprobs: list[float]
    """fp32 log-probability of each token under the distribution it was drawn from: tempered,
    and renormalised over the top-p set. Greedy sampling reports temperature 1."""
    finish_reason: FinishReason
    """`stop` (a stop token or string), `repetition` (the rule) or `length` (the window)."""
    policy_version: int = 0
    """Version of the weights that it was drawn from, as given to the last `sync`."""


@dataclass(frozen=True)
class SyncReport:
    """What a weight update did."""

    version: int
    """Version that samples carry from now on."""
    seconds: float
    """Wall-clock time of the update and its check; starting a server is part of the first one."""
    probe_difference: float
    """Largest difference in log-probability between sampler and trainer on the probe, in nats."""


class Generator(Protocol):
    """Anything that samples from a policy."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        samples_per_prompt: int,
        settings: SamplingSettings,
        seed: int,
        progress: Progress | None = None,
    ) -> list[list[Sample]]:
        """Return `samples_per_prompt` samples of every prompt, in the order of the prompts.

        The same seed gives the same samples on the same machine.
        """
        ...


class SyncedGenerator(Generator, Protocol):
    """A generator that is told when the policy has changed."""

    def sync(self, model: HybridModel, version: int) -> SyncReport:
        """Sample from these weights from now on, and mark samples with `version`.

        Raises:
            CheckpointError: What samples now does not agree with `model`.
            GeneratorError: The update failed or took too long.
        """
        ...


def check_prompts(prompts: Sequence[Sequence[int]], vocab_size: int) -> None:
    """Refuse prompts that a model cannot read.

    Raises:
        DataError: A prompt is empty or holds an id outside the vocabulary; names it by index.
    """
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise DataError(f"prompt {index} is empty; render it with the chat template first")
        worst = max(prompt) if min(prompt) >= 0 else min(prompt)
        if not 0 <= worst < vocab_size:
            raise DataError(
                f"prompt {index} holds token {worst}, outside the model's vocabulary of "
                f"{vocab_size}; encode it with the tokenizer that the model was trained with"
            )
