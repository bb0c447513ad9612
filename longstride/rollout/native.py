"""The native generator: batched decoding in PyTorch, on whatever device the model is.

Each prompt is read once and its state is copied to its samples. Rows that finish make room for
waiting samples every few steps, so that a batch is not held up by its longest sample.

Legend: R row slots, n rows in use, L new tokens of a row.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from longstride.errors import CheckpointError
from longstride.model.decoding import DecodeState, LayerState, decode_step, empty_state, prefill
from longstride.model.hybrid import HybridModel
from longstride.model.stepping import native_step
from longstride.rollout.protocol import (
    FinishReason,
    Progress,
    Sample,
    SamplingSettings,
    SyncReport,
    check_prompts,
)
from longstride.rollout.sampling import UNIFORM_BLOCK, Drawn, draw, uniform_block
from longstride.rollout.stop_text import StopText
from longstride.rollout.stopping import extend_runs

_STEPS_BETWEEN_REFILLS = 4
_REASONS: tuple[FinishReason, ...] = ("stop", "repetition", "length")


class NativeGenerator:
    """Samples from a `HybridModel`; implements `longstride.rollout.protocol.SyncedGenerator`."""

    def __init__(
        self, model: HybridModel, max_batch: int = 256, prefill_tokens: int = 16_384
    ) -> None:
        """Wrap a model.

        Args:
            model: the policy; its weights may change between calls.
            max_batch: samples decoded at a time, at most.
            prefill_tokens: padded prompt tokens read in one pass, at most (but at least a prompt).
        """
        if max_batch < 1:
            raise ValueError(f"max_batch={max_batch} must be at least 1")
        self.model, self.max_batch, self.prefill_tokens = model, max_batch, prefill_tokens
        self.version = 0

    def sync(self, model: HybridModel, version: int) -> SyncReport:
        """Sample from `model`, the trainer's own: nothing is copied, so nothing can differ."""
        self.model, self.version = model, version
        return SyncReport(version=version, seconds=0.0, probe_difference=0.0)

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        samples_per_prompt: int,
        settings: SamplingSettings,
        seed: int,
        progress: Progress | None = None,
    ) -> list[list[Sample]]:
        """Return `samples_per_prompt` samples of every prompt, in the order of the prompts.

        A sample is a function of model, prompt, settings, seed and its two indices; which samples
        share its batch changes its logits by rounding only.

        Raises:
            DataError: a prompt is empty or holds an id outside the vocabulary.
            CheckpointError: the model produced NaN or infinite logits.
        """
        if samples_per_prompt < 1:
            raise ValueError(f"samples_per_prompt={samples_per_prompt} must be at least 1")
        check_prompts(prompts, self.model.config.vocab_size)
        if not prompts:
            return []
        with torch.inference_mode():
            batch = _Batch(self, prompts, samples_per_prompt, settings, seed)
            while batch.refill():
                batch.advance()
                batch.harvest()
                if progress is not None:
                    progress(batch.finished, batch.jobs)
        flat = batch.results()
        return [
            flat[start : start + samples_per_prompt]
            for start in range(0, len(flat), samples_per_prompt)
        ]


class _Batch:
    """The rows being decoded, the queue behind them and the samples already done.

    Row slots `[0, used)` are in use. Jobs are numbered prompt by prompt and started in order.
    """

    def __init__(
        self,
        generator: NativeGenerator,
        prompts: Sequence[Sequence[int]],
        samples: int,
        settings: SamplingSettings,
        seed: int,
    ) -> None:
        self.model, self.prompts, self.samples = generator.model, prompts, samples
        self.settings, self.seed, self.prefill_tokens = settings, seed, generator.prefill_tokens
        self.version = generator.version
        self.device = self.model.embed.weight.device
        self.jobs = len(prompts) * samples
        self.rows = rows = min(generator.max_batch, self.jobs)
        self.next_job = self.used = self.finished = 0
        self.done: dict[int, Sample] = {}
        self.state: DecodeState = empty_state(
            self.model, rows, max(map(len, prompts)) + UNIFORM_BLOCK
        )
        # Packed anew for every call, so that it cannot outlive an update of the weights.
        self.native = native_step(self.model)
        self.partial: tuple[int, DecodeState] | None = None
        width = min(settings.max_new_tokens, UNIFORM_BLOCK) + 1
        self.tokens_RL = torch.zeros(rows, width, dtype=torch.int64, device=self.device)
        self.logps_RL = torch.zeros(rows, width, device=self.device)
        self.uniform_RU = np.zeros((rows, UNIFORM_BLOCK))
        self.job_R = np.zeros(rows, dtype=np.int64)
        self.count_R = torch.zeros(rows, dtype=torch.int64, device=self.device)
        self.run_R = torch.zeros_like(self.count_R)
        self.reason_R = torch.full_like(self.count_R, -1)
        self.stops = torch.tensor(settings.stop_ids, dtype=torch.int64, device=self.device)

    def refill(self) -> bool:
        """Start waiting samples when enough slots are free; return whether any row is in use."""
        free = min(self.rows - self.used, self.jobs - self.next_job)
        # A prefill of one prompt costs as much as one of many: wait for an eighth of the slots.
        if free and (not self.used or free >= min(self.rows // 8, self.jobs - self.next_job)):
            last_job = self.next_job + free
            while self.next_job < last_job:
                self._start_some(last_job)
        return self.used > 0

    def _start_some(self, last_job: int) -> None:
        """Start the samples of the next few prompts, up to `last_job` (exclusive)."""
        first = self.next_job // self.samples
        if self.partial is not None and self.partial[0] == first:
            state, prompts = self.partial[1], range(first, first + 1)
        else:
            wanted = range(first, (last_job - 1) // self.samples + 1)
            prompts = self._that_fit(wanted)
            state = self._read(prompts)
        stop = min(last_job, (prompts[-1] + 1) * self.samples)
        jobs = np.arange(self.next_job, stop)
        source = torch.as_tensor(jobs // self.samples - prompts[0], device=self.device)
        rows = np.arange(self.used, self.used + len(jobs))
        slots = torch.as_tensor(rows, device=self.device)
        self.state.write(slots, state, source)
        self.job_R[rows] = jobs
        self.count_R[slots], self.run_R[slots], self.reason_R[slots] = 0, 0, -1
        self.used, self.next_job = self.used + len(jobs), stop
        self.partial = None
        if stop < (prompts[-1] + 1) * self.samples:
            self.partial = (prompts[-1], _one_row(state, prompts[-1] - prompts[0]))

    def _that_fit(self, wanted: range) -> range:
        """Return the first prompts of `wanted` whose padded size fits one prefill, at least one."""
        longest = 0
        for index, prompt in enumerate(wanted):
            longest = max(longest, len(self.prompts[prompt]))
            if index and longest * (index + 1) > self.prefill_tokens:
                return wanted[:index]
        return wanted

    def _read(self, prompts: range) -> DecodeState:
        texts = [self.prompts[prompt] for prompt in prompts]
        lengths = torch.tensor([len(text) for text in texts], device=self.device)
        tokens = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.int64)
        for row, text in enumerate(texts):
            tokens[row, : len(text)] = torch.tensor(text, dtype=torch.int64)
        return prefill(self.model, tokens.to(self.device), lengths)

    def advance(self) -> None:
        """Draw a few tokens for every row in use; rows that finish meanwhile idle along."""
        for _ in range(_STEPS_BETWEEN_REFILLS):
            self._record(self._draw())
            if bool((self.reason_R[: self.used] >= 0).all()):
                return
            if self.native is not None:
                self.native(self.state, self.tokens_now)
            else:
                decode_step(self.model, self.state, self.tokens_now)

    def _draw(self) -> Drawn:
        logits = self.model.logits(self.state.hidden_RX[: self.used])
        drawn = draw(logits, self._uniforms(), self.settings.temperature, self.settings.top_p)
        if not bool(drawn.finite_R.all()):
            row = int(torch.nonzero(~drawn.finite_R)[0, 0])
            prompt, sample = divmod(int(self.job_R[row]), self.samples)
            raise CheckpointError(
                f"prompt {prompt}, sample {sample}, new token {int(self.count_R[row])}: the "
                "model's logits are NaN or infinite; its weights have diverged or are corrupt: "
                "generate from an earlier checkpoint"
            )
        return drawn

    def _uniforms(self) -> Tensor:
        """Return each row's number for its current step, fp64."""
        counts = self.count_R[: self.used].cpu().numpy()
        live = self.reason_R[: self.used].cpu().numpy() < 0
        for row in np.flatnonzero(live & (counts % UNIFORM_BLOCK == 0)):
            prompt, sample = divmod(int(self.job_R[row]), self.samples)
            block = int(counts[row]) // UNIFORM_BLOCK
            self.uniform_RU[row] = uniform_block(self.seed, prompt, sample, block)
        picked = self.uniform_RU[np.arange(self.used), counts % UNIFORM_BLOCK]
        return torch.from_numpy(picked).to(self.device)

    def _record(self, drawn: Drawn) -> None:
        """Store the tokens drawn and mark the rows that end with them."""
        settings, used = self.settings, self.used
        count, run, reason = self.count_R[:used], self.run_R[:used], self.reason_R[:used]
        if int(count.max()) + 1 >= self.tokens_RL.shape[1]:
            self._widen()
        index = torch.arange(used, device=self.device)
        # Finished rows write behind their last token, where nobody looks.
        self.tokens_RL[index, count] = drawn.token_R
        self.logps_RL[index, count] = drawn.logp_R
        self.tokens_now = drawn.token_R
        live = reason < 0
        count += live
        run.copy_(extend_runs(run, drawn.model_prob_R, settings.repetition_threshold))
        reason[live & (count >= settings.max_new_tokens)] = _REASONS.index("length")
        if settings.repetition_run:
            reason[live & (run >= settings.repetition_run)] = _REASONS.index("repetition")
        if len(self.stops):
            reason[live & torch.isin(drawn.token_R, self.stops)] = _REASONS.index("stop")

    def _widen(self) -> None:
        """Double the room for new tokens, up to the window."""
        extra = min(self.tokens_RL.shape[1], self.settings.max_new_tokens + 1)
        self.tokens_RL = torch.nn.functional.pad(self.tokens_RL, (0, extra))
        self.logps_RL = torch.nn.functional.pad(self.logps_RL, (0, extra))

    def harvest(self) -> None:
        """Move finished samples out and close the holes that they leave."""
        if self.settings.stop_text is not None:
            self._stop_at(self.settings.stop_text)
        reasons = self.reason_R[: self.used].cpu().numpy()
        ended = np.flatnonzero(reasons >= 0)
        if not len(ended):
            return
        for row in ended:
            length = int(self.count_R[row])
            self.done[int(self.job_R[row])] = Sample(
                tokens=self.tokens_RL[row, :length].tolist(),
                logprobs=self.logps_RL[row, :length].tolist(),
                finish_reason=_REASONS[reasons[row]],
                policy_version=self.version,
            )
        self.finished += len(ended)
        keep = self.used - len(ended)
        holes = ended[ended < keep]
        movers = np.flatnonzero(reasons < 0)
        movers = movers[movers >= keep]
        self._move(holes, movers)
        self.used = keep

    def _stop_at(self, text: StopText) -> None:
        """End rows whose last few tokens completed a stop string, and drop what came after."""
        counts = self.count_R[: self.used].tolist()
        for row, count in enumerate(counts):
            tokens = self.tokens_RL[row, :count].tolist()
            kept = text.cut(tokens, known=max(0, count - _STEPS_BETWEEN_REFILLS))
            if kept is not None:
                self.count_R[row] = kept
                self.reason_R[row] = _REASONS.index("stop")

    def _move(self, to: np.ndarray, origin: np.ndarray) -> None:
        if not len(to):
            return
        self.job_R[to] = self.job_R[origin]
        self.uniform_RU[to] = self.uniform_RU[origin]
        rows = torch.as_tensor(to, device=self.device)
        source = torch.as_tensor(origin, device=self.device)
        self.state.write(rows, self.state, source)
        for tensor in (self.tokens_RL, self.logps_RL, self.count_R, self.run_R, self.reason_R):
            tensor[rows] = tensor[source]

    def results(self) -> list[Sample]:
        """Return all samples in the order of the jobs."""
        return [self.done[job] for job in range(self.jobs)]


def _one_row(state: DecodeState, row: int) -> DecodeState:
    """Copy one row out of a prefill, so that the rest of it can be freed."""
    part = slice(row, row + 1)
    layers = [
        LayerState([tensor[part].clone() for tensor in layer.tensors], layer.lightning)
        for layer in state.layers
    ]
    return DecodeState(layers, state.lengths_R[part].clone(), state.hidden_RX[part].clone())
