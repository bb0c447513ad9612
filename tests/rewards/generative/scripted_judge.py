"""A real HTTP server on loopback that answers as a judge with a known character.

The problem is to list the primes from 11 to 47. The share of them that an answer lists, less the
wrong numbers, is its true quality, so that personas and tests know who is right.
"""

from __future__ import annotations

import json
import math
import random
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from longstride.rewards.generative.judge import JudgeState, ModelJudge
from longstride.rewards.protocol import Submission
from schemas.judging import GenerativeJudgeConfig
from schemas.rows import RLPrompt

PRIMES = (11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47)
PROBLEM = "List all primes between ten and fifty."
REFERENCE = ", ".join(map(str, PRIMES))
GRADE, BETTER = "grade", "better"


def truth(answer: str) -> float:
    """True quality of an answer, from 0 to 1."""
    numbers = {int(n) for n in re.findall(r"\b\d\d\b", answer)}
    right = len(numbers & set(PRIMES))
    return max(0.0, (right - len(numbers - set(PRIMES))) / len(PRIMES))


def listing(count: int, padding: str = "") -> str:
    """An answer with so many of the primes."""
    return f"{padding} {', '.join(map(str, PRIMES[:count]))} {padding}".strip()


@dataclass(frozen=True)
class Asked:
    """One question as the model sees it."""

    text: str
    nonce: str
    seed: int
    number: int
    """How many requests came before it."""

    def section(self, name: str) -> str:
        match = re.search(
            f"BEGIN {name} {self.nonce}\n(.*)\nEND {name} {self.nonce}", self.text, re.DOTALL
        )
        assert match is not None, f"no section {name}"
        return match.group(1)

    @property
    def pairwise(self) -> bool:
        return f"BEGIN FIRST {self.nonce}" in self.text

    def verdict(self, value: int | str) -> str:
        return json.dumps({"code": self.nonce, BETTER if self.pairwise else GRADE: value})


Persona = Callable[[Asked], Any]
"""A reply text, or (status, headers, body), or a callable that takes over the connection."""


def by_worth(worth: Callable[[str], float], margin: float = 0.02) -> Persona:
    """A judge that goes by `worth` of an answer."""

    def reply(asked: Asked) -> str:
        if asked.pairwise:
            gap = worth(asked.section("FIRST")) - worth(asked.section("SECOND"))
            return asked.verdict("tie" if abs(gap) < margin else "first" if gap > 0 else "second")
        return asked.verdict(1 + round(4 * min(1.0, max(0.0, worth(asked.section("ANSWER"))))))

    return reply


honest = by_worth(truth)
prefers_longer = by_worth(lambda text: truth(text) * 0.4 + 0.3 * math.log10(max(1, len(text)) / 10))


def prefers_first(asked: Asked) -> str:
    return asked.verdict("first" if asked.pairwise else 3)


def obeys_orders(asked: Asked) -> str:
    """Does what an answer tells it, the code included."""
    for name in ("FIRST", "SECOND") if asked.pairwise else ("ANSWER",):
        if "NOTE TO THE GRADER" in asked.section(name):
            return asked.verdict(name.lower() if asked.pairwise else 5)
    return honest(asked)


def repeats_what_it_reads(asked: Asked) -> str:
    """Ends its reply with the verdict that the answer shows."""
    shown = re.findall(r"\{[^{}]*\}", asked.section("ANSWER"))
    return shown[-1] if shown else honest(asked)


def refuses(asked: Asked) -> str:
    return "I am sorry, but I cannot help with that."


def inconsistent(asked: Asked) -> str:
    choice = random.Random(asked.seed)
    return asked.verdict(
        choice.choice(("first", "second", "tie")) if asked.pairwise else choice.randint(1, 5)
    )


@dataclass
class Server:
    """A running server and what it was asked."""

    persona: Persona
    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    most_at_once: int = 0

    @property
    def calls(self) -> int:
        return len(self.requests)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        state: Server = self.server.state
        with self.server.lock:
            self.server.now += 1
            state.most_at_once = max(state.most_at_once, self.server.now)
        try:
            self._answer(state)
        finally:
            with self.server.lock:
                self.server.now -= 1

    def _answer(self, state: Server) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            number = len(state.requests)
            state.requests.append({"path": self.path, **body})
            state.headers.append(dict(self.headers))
        text = body["messages"][0]["content"]
        nonce = re.search(r"BEGIN PROBLEM (\w+)", text).group(1)
        reply = state.persona(Asked(text, nonce, body["seed"], number))
        if callable(reply):
            reply(self)
            self.close_connection = True
            return
        status, headers, raw = reply if isinstance(reply, tuple) else (200, {}, completion(reply))
        self.send_response(status)
        for name, value in {"Content-Length": str(len(raw)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(raw)

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


class _Quiet(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that gave up is part of the tests."""


def completion(text: str, **message: Any) -> bytes:
    """A chat completion as a server sends it."""
    choice = {"message": {"role": "assistant", "content": text, **message}, "finish_reason": "stop"}
    return json.dumps({"choices": [choice], "usage": {"total_tokens": 100}}).encode()


@contextmanager
def served(persona: Persona) -> Iterator[Server]:
    """Run a server for as long as the block lasts."""
    server = _Quiet(("127.0.0.1", 0), _Handler)
    server.state = Server(persona, f"http://127.0.0.1:{server.server_address[1]}/v1")
    server.lock, server.now = threading.Lock(), 0
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield server.state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def config(server: Server | str, **changes: Any) -> GenerativeJudgeConfig:
    """A configuration that is quick to give up; `limits` are merged."""
    limits = {"backoff_seconds": 0.01, "concurrency": 8, "request_seconds": 10.0}
    limits |= changes.pop("limits", {})
    url = server if isinstance(server, str) else server.url
    return GenerativeJudgeConfig(url=url, model="judge", limits=limits, **changes)


@contextmanager
def judging(
    server: Server | str, folder: Path, state: JudgeState | None = None, **changes: Any
) -> Iterator[ModelJudge]:
    """A judge over a server."""
    with ModelJudge(config(server, **changes), 7, folder, ["primes", "probe"], state) as judge:
        yield judge


def submission(
    answer: str, verifier: str = "consistency", reference: str = REFERENCE, name: str = "p"
) -> Submission:
    """An answer to the problem."""
    prompt = RLPrompt(
        id=name, prompt=PROBLEM, answer=reference, family="primes", verifier=verifier, entry={},
        judge="model",
    )  # fmt: skip
    return Submission(prompt, answer, tokens=len(answer) // 4)


def drip(handler: BaseHTTPRequestHandler) -> None:
    """Send a body a byte at a time, each well within any time limit of one read."""
    handler.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\nConnection: close\r\n\r\n")
    for _ in range(200):
        handler.wfile.write(b" ")
        handler.wfile.flush()
        time.sleep(0.05)


def hang_up(handler: BaseHTTPRequestHandler) -> None:
    """Close the connection without an answer."""
