"""One question to the judge: cache, budget, endpoint, verdict, and asking again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from longstride.rewards.generative.cache import CachedReply, VerdictCache
from longstride.rewards.generative.counters import Counters
from longstride.rewards.generative.endpoint import ChatEndpoint, Reply
from longstride.rewards.generative.failures import CallFailed
from longstride.rewards.generative.ledger import LEDGER_FILE, Ledger
from longstride.rewards.generative.templates import Template, fresh_nonce, load_template
from longstride.rewards.generative.verdicts import UnreadableVerdict, Verdict, parse_verdict
from longstride.store.seeds import stream_seed
from schemas.judging import GRADES, GenerativeJudgeConfig

CACHE_FOLDER = "verdicts"
BETTER = ("first", "second", "tie")
_FIELDS: dict[str, tuple[str, Sequence[Verdict]]] = {
    "consistency": ("grade", GRADES),
    "pairwise": ("better", BETTER),
}
_SEED_BITS = 0x7FFFFFFF
"""Seeds stay below 2^31, which every server takes."""


class Asker:
    """Asks a model for verdicts; safe between threads."""

    def __init__(self, config: GenerativeJudgeConfig, seed: int, directory: Path) -> None:
        """Open a directory of judgments, whose cache and budget outlive this process.

        Raises:
            UsageError: the key's variable is not set.
            DataError: the ledger cannot be read.
        """
        self.config, self._seed = config, seed
        self.counters = Counters()
        self._endpoint = ChatEndpoint(config, self._before_send)
        self._ledger = Ledger(
            directory / LEDGER_FILE, config.limits.max_calls, config.limits.max_tokens
        )
        self._cache = VerdictCache(directory / CACHE_FOLDER)

    def close(self) -> None:
        """Close the ledger."""
        self._ledger.close()

    def ask(self, kind: str, texts: Mapping[str, str], repeat: int, end: float) -> Verdict:
        """The verdict of one blind judgment.

        A refusal or an unreadable verdict is asked again with another seed and another code.

        Args:
            kind: template and verdict: `consistency` or `pairwise`.
            texts: what fills the template.
            repeat: which of the independent judgments of these texts.
            end: time by `time.monotonic()` at which it is given up.

        Raises:
            CallFailed: no verdict.
        """
        template = load_template(kind)
        problem = ""
        for attempt in range(self.config.limits.reasks + 1):
            if attempt:
                self.counters.add("reasks")
            seed = stream_seed(self._seed, "judge", kind, repeat, attempt) & _SEED_BITS
            reply = self._reply(template, texts, seed, end)
            if reply.verdict is not None:
                return reply.verdict
            problem = reply.problem
        raise CallFailed(
            "malformed", f"{problem}, in each of {self.config.limits.reasks + 1} replies"
        )

    def _reply(
        self, template: Template, texts: Mapping[str, str], seed: int, end: float
    ) -> CachedReply:
        key = self._cache.key(
            {
                "model": self.config.model,
                "template": [template.name, template.version, template.digest],
                "sampling": self.config.sampling.model_dump(mode="json"),
                "seed": seed,
                "texts": dict(texts),
            }
        )
        known = self._cache.get(key)
        if known is not None:
            self.counters.add("cache_hits")
            return known
        nonce = fresh_nonce(texts)
        answered = self._endpoint.ask(template.render(texts, nonce), seed, end)
        self._ledger.spend(answered.tokens)
        self.counters.answered(answered.seconds, answered.tokens)
        reply = _read(answered, nonce, *_FIELDS[template.name])
        self._cache.put(key, reply)
        return reply

    def _before_send(self) -> None:
        self._ledger.reserve()
        self.counters.add("calls")


def _read(answered: Reply, nonce: str, field: str, allowed: Sequence[Verdict]) -> CachedReply:
    if answered.refusal:
        return CachedReply(verdict=None, problem="the judge refused", tokens=answered.tokens)
    try:
        verdict = parse_verdict(answered.text, nonce, field, allowed)
    except UnreadableVerdict as error:
        return CachedReply(verdict=None, problem=str(error), tokens=answered.tokens)
    return CachedReply(verdict=verdict, tokens=answered.tokens)
