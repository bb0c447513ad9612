"""The vLLM generator: exact token ids and log-probabilities from a server in its own environment.

Every sample is one request with a seed of its own; the samples of a prompt share its keys and
values through vLLM's prefix cache. What vLLM cannot promise: which requests share a batch changes
logits by rounding, so a sample may differ where two tokens are almost equally likely.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from longstride.errors import CheckpointError, DataError, GeneratorError
from longstride.model.hybrid import HybridModel
from longstride.rollout.probe import SEED, TEMPERATURE, Probe, Scored
from longstride.rollout.protocol import (
    Progress,
    Sample,
    SamplingSettings,
    SyncReport,
    check_prompts,
)
from longstride.rollout.vllm_answers import (
    PATH,
    completion_request,
    read_piece,
    read_prompt_logprobs,
)
from longstride.rollout.vllm_http import Deadline, ServerConnection
from longstride.rollout.vllm_sampling import check_settings, sample_all
from longstride.rollout.vllm_server import ServerOptions, VllmServer
from longstride.rollout.weights import WeightFolders
from longstride.store.seeds import stream_seed
from schemas.generators import VllmGeneratorConfig, vllm_obstacle

_BETWEEN_TRIES_SECONDS = 0.1


class VllmGenerator:
    """Samples by a vLLM server; implements `longstride.rollout.protocol.SyncedGenerator`.

    A context manager: leaving it stops the server that `sync` started, and removes the weights.
    """

    def __init__(self, config: VllmGeneratorConfig, options: ServerOptions, log: Path) -> None:
        """Remember the choices; nothing runs before the first `sync`.

        Args:
            config: the recipe's `rollout.generator`.
            options: what else a server is started with.
            log: file for the server's output.
        """
        self.config, self.options, self.log = config, options, log
        self.version: int | None = None
        self._server: VllmServer | None = None
        self._connection = ServerConnection(config.url) if config.url else None
        self._weights: WeightFolders | None = None
        self._probe: Probe | None = None
        self._vocab_size = 0

    def __enter__(self) -> Self:
        """Return self."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stop the server and remove the weights."""
        self.close()

    def close(self) -> None:
        """Stop the server, if this generator started one, and remove the weights."""
        self.version = None
        if self._server is not None:
            self._server.stop()
            self._server = None
        if self._weights is not None:
            self._weights.remove()
            self._weights = None

    def sync(self, model: HybridModel, version: int) -> SyncReport:
        """Hand over weights, drop cached keys and values, and check that the sampler uses them.

        The first call starts the server. After a failure nothing can be generated.

        Raises:
            CheckpointError: Sampler and trainer disagree, or vLLM cannot run the model.
            GeneratorError: A step failed or took too long.
            UsageError: There is no environment with vLLM.
        """
        began = time.monotonic()
        self.version = None
        obstacle = vllm_obstacle(model.config)
        if obstacle is not None:
            raise CheckpointError(f"vLLM cannot run this model: it {obstacle}")
        if self._weights is None:
            self._weights = WeightFolders(model, self.config.weights_directory)
            self._vocab_size = model.config.vocab_size
            self._probe = Probe(
                self._vocab_size, self.options.max_model_len, self.config.probe_tolerance
            )
        folder = self._weights.write(model, version)
        if self._connection is None:
            connection = self._start(folder)
        else:
            connection = self._connection
            self._reload(connection, folder, version)
        assert self._probe is not None
        difference = self._probe.check(model, version, self._score(connection, self._probe))
        self._weights.keep_only(folder)
        self.version = version
        return SyncReport(version, time.monotonic() - began, difference)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        samples_per_prompt: int,
        settings: SamplingSettings,
        seed: int,
        progress: Progress | None = None,
    ) -> list[list[Sample]]:
        """Return `samples_per_prompt` samples of every prompt, in the order of the prompts.

        A sample's random numbers are a function of seed and its two indices.

        Raises:
            DataError: A prompt is empty, holds a foreign id, or does not fit with its answer.
            UsageError: vLLM cannot sample with these settings.
            GeneratorError: The server failed or took too long.
            CheckpointError: The model's log-probabilities are not finite.
        """
        if samples_per_prompt < 1:
            raise ValueError(f"samples_per_prompt={samples_per_prompt} must be at least 1")
        if self.version is None or self._connection is None:
            raise GeneratorError("there are no checked weights to sample from; call sync first")
        check_prompts(prompts, self._vocab_size)
        self._check_lengths(prompts, settings.max_new_tokens)
        check_settings(settings)
        if not prompts:
            return []
        jobs = [
            (prompts[prompt], stream_seed(seed, prompt, sample))
            for prompt in range(len(prompts))
            for sample in range(samples_per_prompt)
        ]
        deadline = Deadline(
            self.config.generate_seconds,
            f"{len(jobs)} samples of up to {settings.max_new_tokens} tokens from vLLM",
            "rollout.generator.generate_seconds",
        )
        flat = sample_all(
            self._connection, jobs, settings, deadline, self.options.max_batch, progress
        )
        for index, sample in enumerate(flat):
            if not 0 <= min(sample.tokens) <= max(sample.tokens) < self._vocab_size:
                raise GeneratorError(
                    f"vLLM returned a token outside the vocabulary of {self._vocab_size}: "
                    f"sample {index % samples_per_prompt} of prompt {index // samples_per_prompt} "
                    f"is {sample.tokens}"
                )
        flat = [replace(sample, policy_version=self.version) for sample in flat]
        return [
            flat[start : start + samples_per_prompt]
            for start in range(0, len(flat), samples_per_prompt)
        ]

    def _start(self, folder: Path) -> ServerConnection:
        self._server = VllmServer(self.config, self.options, folder, self.log)
        self._server.wait_until_up()
        self._connection = self._server.connection
        return self._connection

    def _reload(self, connection: ServerConnection, folder: Path, version: int) -> None:
        deadline = self._reload_deadline(f"vLLM to load the weights of version {version}")
        connection.post(
            "/collective_rpc",
            {
                "method": "reload_weights",
                "kwargs": {"weights_path": str(folder)},
                "timeout": self.config.reload_seconds,
            },
            deadline,
        )
        # Keys and values of the old weights would be used for new prompts with an equal beginning.
        # Requests that were aborted a moment ago may still hold some.
        while connection.post("/reset_prefix_cache", {}, deadline).get("success") is not True:
            # The next request notices when the time is up.
            time.sleep(_BETWEEN_TRIES_SECONDS)

    def _score(self, connection: ServerConnection, probe: Probe) -> Scored:
        """Let the server score the probe, and sample behind it as it will sample in earnest."""
        deadline = self._reload_deadline("vLLM to score the probe sequence")
        settings = SamplingSettings(probe.new_tokens, temperature=TEMPERATURE)
        request = completion_request(probe.tokens, settings, SEED, stream=False)
        one_token = {"max_tokens": 1, "prompt_logprobs": 0}
        scored = connection.post(PATH, request | one_token, deadline)
        # A request for prompt log-probabilities goes around the prefix cache; this one does not, so
        # that keys and values of older weights would show.
        sampled = read_piece(connection.post(PATH, request, deadline))
        return Scored(read_prompt_logprobs(scored, probe.tokens), sampled.tokens, sampled.logprobs)

    def _reload_deadline(self, awaited: str) -> Deadline:
        return Deadline(self.config.reload_seconds, awaited, "rollout.generator.reload_seconds")

    def _check_lengths(self, prompts: Sequence[Sequence[int]], new_tokens: int) -> None:
        longest = self.options.max_model_len
        for index, prompt in enumerate(prompts):
            if len(prompt) + new_tokens > longest:
                raise DataError(
                    f"prompt {index} has {len(prompt)} tokens, which with {new_tokens} new ones "
                    f"exceeds the {longest} that the vLLM server takes; extend the context "
                    "further, shorten the window, or leave out long prompts"
                )
