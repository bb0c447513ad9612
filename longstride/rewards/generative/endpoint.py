"""Chat completions of an OpenAI-compatible server, within hard time limits, with retries."""

from __future__ import annotations

import http.client
import json
import os
import random
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock, Timer
from typing import Any
from urllib.parse import urlsplit

from longstride.errors import UsageError
from longstride.rewards.generative.failures import CallFailed
from schemas.judging import GenerativeJudgeConfig

_MAX_REPLY_BYTES = 4 << 20
_MAX_WAIT_SECONDS = 30.0
_TOO_MANY = 429
_SERVER_ERRORS = 500
_CANNOT_BE_USED = frozenset({401, 402, 403, 404, 405, 407})


@dataclass(frozen=True)
class Reply:
    """One answered request."""

    text: str
    """What the model said, without what the server has split off as its reasoning."""
    refusal: bool
    """Whether the server marks it as a refusal."""
    tokens: int
    """Prompt and reply tokens, as the server counts them; 0 where it does not."""
    seconds: float
    """Time that it took, without earlier tries."""


class _Again(Exception):
    """A try failed in a way that may pass."""

    def __init__(self, detail: str, wait: float = 0.0) -> None:
        super().__init__(detail)
        self.detail, self.wait = detail, wait


class _Outage:
    """Keeps a batch from waiting for a dead endpoint once for every submission."""

    def __init__(self, failures: int, seconds: float) -> None:
        self._limit, self._seconds = failures, seconds
        self._in_a_row, self._until = 0, 0.0
        self._lock = Lock()

    def check(self) -> None:
        with self._lock:
            if time.monotonic() < self._until:
                raise CallFailed(
                    "unavailable", f"the last {self._in_a_row} requests stayed unanswered"
                )

    def failed(self) -> None:
        with self._lock:
            self._in_a_row += 1
            if self._in_a_row >= self._limit:
                self._until = time.monotonic() + self._seconds

    def answered(self) -> None:
        with self._lock:
            self._in_a_row, self._until = 0, 0.0


class ChatEndpoint:
    """Asks one model. Methods may be called from several threads.

    The key is held in a closure, so that no `repr`, no pickle and no error can show it.
    """

    def __init__(self, config: GenerativeJudgeConfig, before_send: Callable[[], None]) -> None:
        """Remember where the server is; nothing is opened yet.

        Args:
            config: the recipe's `rewards.model`.
            before_send: called before every try; raises `CallFailed` to forbid it.

        Raises:
            UsageError: the variable with the key is not set, or its value is no key.
        """
        parts = urlsplit(config.url)
        secure = parts.scheme == "https"
        self._class = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._host, self._port = parts.hostname or "", parts.port or (443 if secure else 80)
        self._path = parts.path.rstrip("/").removesuffix("/v1") + "/v1/chat/completions"
        self._config, self._limits = config, config.limits
        self._before_send = before_send
        self._headers = _headers(config.api_key_variable)
        self._outage = _Outage(config.limits.outage_failures, config.limits.outage_seconds)
        self._random = random.Random()  # of waits only

    def ask(self, text: str, seed: int, end: float) -> Reply:
        """Ask one question in a conversation of its own.

        Args:
            text: the user's turn.
            seed: of the judge's sampling.
            end: time by `time.monotonic()` at which it is given up, whatever it is doing.

        Raises:
            CallFailed: `timeout`, `unavailable`, `budget`, or `error` when the server refuses the
                request itself.
        """
        self._outage.check()
        try:
            reply = self._with_retries(self._payload(text, seed), end)
        except CallFailed as failure:
            if failure.reason in ("timeout", "unavailable"):
                self._outage.failed()
            raise
        self._outage.answered()
        return reply

    def _payload(self, text: str, seed: int) -> bytes:
        sampling = self._config.sampling
        body = {
            **sampling.extra,
            "model": self._config.model,
            "messages": [{"role": "user", "content": text}],
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "max_tokens": sampling.max_tokens,
            "seed": seed,
        }
        return json.dumps(body).encode()

    def _with_retries(self, payload: bytes, end: float) -> Reply:
        for attempt in range(self._limits.retries + 1):
            self._before_send()
            try:
                return self._try(payload, end)
            except _Again as problem:
                if attempt == self._limits.retries:
                    tries = f"{attempt + 1} tries" if attempt else "1 try"
                    raise CallFailed("unavailable", f"{problem.detail}, after {tries}") from None
                self._wait(attempt, problem, end)
        raise AssertionError("the last try either returns or raises")

    def _wait(self, attempt: int, problem: _Again, end: float) -> None:
        doubled = min(_MAX_WAIT_SECONDS, self._limits.backoff_seconds * 2.0**attempt)
        wait = max(problem.wait, doubled * (0.5 + 0.5 * self._random.random()))
        if time.monotonic() + wait >= end:
            raise CallFailed("unavailable", f"{problem.detail}; no time is left to try again")
        time.sleep(wait)

    def _try(self, payload: bytes, end: float) -> Reply:
        began = time.monotonic()
        seconds = min(self._limits.request_seconds, end - began)
        if seconds <= 0:
            raise CallFailed("timeout", "the submission's time is up")
        status, headers, raw = self._exchange(payload, seconds)
        if status == _TOO_MANY or status >= _SERVER_ERRORS:
            raise _Again(f"the endpoint answered with status {status}", _retry_after(headers))
        if status in _CANNOT_BE_USED:
            raise CallFailed(
                "unavailable",
                f"the endpoint answered with status {status}; check rewards.model.url, .model and "
                ".api_key_variable",
            )
        if status != http.HTTPStatus.OK:
            raise CallFailed("error", f"the endpoint refused the request with status {status}")
        return _read_reply(raw, time.monotonic() - began)

    def _exchange(
        self, payload: bytes, seconds: float
    ) -> tuple[int, http.client.HTTPMessage, bytes]:
        """Post; return status, headers and body, or fail within `seconds`."""
        connection = self._class(self._host, self._port, timeout=seconds)
        expired = Event()
        open_: list[socket.socket] = []
        watch = Timer(seconds, _break, (open_, expired))
        watch.daemon = True
        watch.start()
        try:
            connection.connect()
            # Held here: the connection lets go of it while the body is still being read.
            open_.append(connection.sock)
            connection.request("POST", self._path, payload, self._headers())
            response = connection.getresponse()
            raw = response.read(_MAX_REPLY_BYTES + 1)
            # A connection that was broken off may read like one that ended early.
            if expired.is_set():
                raise TimeoutError
            if len(raw) > _MAX_REPLY_BYTES:
                raise CallFailed("error", f"the reply is longer than {_MAX_REPLY_BYTES} bytes")
            return response.status, response.headers, raw
        except (OSError, http.client.HTTPException) as error:
            if expired.is_set() or isinstance(error, TimeoutError):
                detail = f"a request took longer than {seconds:.3g} s"
                raise CallFailed("timeout", detail) from None
            kind = type(error).__name__
            raise _Again(f"the connection to the endpoint failed ({kind})") from None
        finally:
            watch.cancel()
            connection.close()


def _headers(variable: str | None) -> Callable[[], dict[str, str]]:
    headers = {"Content-Type": "application/json"}
    if variable is not None:
        key = os.environ.get(variable, "").strip()
        if not key:
            raise UsageError(
                f"rewards.model.api_key_variable names {variable}, which is not set; set it, or "
                "remove the field for a server without a key"
            )
        # http.client would quote an impossible header in its error.
        if not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError(f"the value of {variable} is not a key: it holds spaces or controls")
        headers["Authorization"] = f"Bearer {key}"
    return lambda: headers


def _break(open_: list[socket.socket], expired: Event) -> None:
    """Break off a request whose bytes may still trickle in, each within its own time limit."""
    expired.set()
    for sock in open_:
        try:
            sock.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # it had just ended


def _retry_after(headers: http.client.HTTPMessage) -> float:
    text = str(headers.get("Retry-After", "")).strip()
    return min(_MAX_WAIT_SECONDS, float(text)) if text.isdigit() else 0.0


def _read_reply(raw: bytes, seconds: float) -> Reply:
    try:
        value: Any = json.loads(raw)
        message = value["choices"][0]["message"]
        content = message.get("content")
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        raise CallFailed(
            "error", "the endpoint's answer is no chat completion; is rewards.model.url right?"
        ) from None
    usage = value.get("usage")
    counted = usage.get("total_tokens") if isinstance(usage, dict) else None
    tokens = counted if type(counted) is int and counted > 0 else 0
    text = content if isinstance(content, str) else ""
    return Reply(text, bool(message.get("refusal")), tokens, seconds)
