"""A server that speaks the part of vLLM's HTTP API that we use, with faults on request.

It samples with the native generator from the weights folder that it was given, so that answers are
right unless a fault makes them wrong. Run as a script, it takes vLLM's own command line.
"""

from __future__ import annotations

import argparse
import itertools
import json
import sys
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock, Thread
from typing import Any

import torch

from longstride.model.huggingface import load_huggingface
from longstride.rollout.native import NativeGenerator
from longstride.rollout.protocol import SamplingSettings


class FakeVllm:
    """The server; `url` is where it listens. Faults are attributes that tests set."""

    def __init__(self, model: Path | None = None, port: int = 0) -> None:
        self.model = load_huggingface(model) if model else None
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.skip_reload = self.raw_logprobs = False
        self.refuse_resets = 0
        self.delay = 0.0
        self.broken: bytes | None = None
        self.status = 200
        self.change: Any = None
        self.events_sent = 0
        self.events: int | None = None
        self.lock = Lock()
        self._cached: dict[tuple[int, ...], Any] = {}
        handler = type("Handler", (_Handler,), {"fake": self})
        self._server = _Server(("127.0.0.1", port), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeVllm:
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def serve(self) -> None:
        self._server.serve_forever()

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path == "/collective_rpc":
            if not self.skip_reload:
                self.model = load_huggingface(body["kwargs"]["weights_path"])
            return {"results": [None]}
        if path == "/reset_prefix_cache":
            self.refuse_resets -= 1
            if self.refuse_resets < 0:
                self._cached.clear()
            return {"success": self.refuse_resets < 0}
        return self.complete(body)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        prompt = body["prompt"]
        scored = None
        model = self.model
        if "prompt_logprobs" in body:
            scored = [None, *self.score(prompt)]
        else:
            # What a prefix cache does: a prompt seen before is continued by the model of then.
            model = self._cached.setdefault(tuple(prompt), model)
        rules = SamplingSettings(
            body["max_tokens"],
            temperature=body["temperature"],
            top_p=body["top_p"],
            stop_ids=tuple(body["stop_token_ids"]),
        )
        with self.lock:
            sample = NativeGenerator(model).generate([prompt], 1, rules, body["seed"])[0][0]
        logprobs = sample.logprobs
        if self.raw_logprobs:
            with torch.no_grad():
                logits = model.logits(model(torch.tensor([prompt + sample.tokens])).hidden_BTD)
            rows = logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            logprobs = rows.gather(1, torch.tensor(sample.tokens)[:, None])[:, 0].tolist()
        return {
            "choices": [
                {
                    "token_ids": sample.tokens,
                    "finish_reason": sample.finish_reason,
                    "logprobs": {"token_logprobs": logprobs},
                    "prompt_logprobs": scored,
                }
            ]
        }

    def score(self, prompt: list[int]) -> list[dict[str, Any]]:
        with torch.no_grad():
            logits = self.model.logits(self.model(torch.tensor([prompt])).hidden_BTD)[0]
        rows = logits.log_softmax(-1)
        return [
            {str(token): {"logprob": float(rows[index, token]), "rank": 1}}
            for index, token in enumerate(prompt[1:])
        ]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512

    def handle_error(self, *_: object) -> None:
        if not isinstance(sys.exception(), ConnectionError):  # clients may give up
            super().handle_error(*_)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    fake: FakeVllm

    def do_GET(self) -> None:
        self._send(200, b"")

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        path = self.path
        with self.fake.lock:
            self.fake.calls.append((path, body))
        time.sleep(self.fake.delay)
        if self.fake.broken is not None:
            self._send(self.fake.status, self.fake.broken)
            return
        answer = self.fake.answer(path, body)
        if self.fake.change is not None:
            answer = self.fake.change(path, answer)
        if answer is None:
            self.close_connection = True  # hang up without a word
        elif body.get("stream"):
            self._stream(answer, body["stream_interval"])
        else:
            self._send(200, json.dumps(answer).encode())

    def _send(self, status: int, text: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def _stream(self, answer: dict[str, Any], interval: int) -> None:
        """As vLLM: the first token alone, then blocks, the reason with the last one."""
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        choice = answer["choices"][0]
        tokens, logprobs = choice["token_ids"], choice["logprobs"]["token_logprobs"]
        cuts = [0, *range(1, len(tokens), interval), len(tokens)]
        try:
            for start, stop in itertools.pairwise(cuts):
                part = {
                    "token_ids": tokens[start:stop],
                    "logprobs": {"token_logprobs": logprobs[start:stop]},
                    "finish_reason": choice["finish_reason"] if stop == len(tokens) else None,
                }
                self._chunk(b"data: " + json.dumps({"choices": [part]}).encode() + b"\n\n")
                self.fake.events_sent += 1
                if self.fake.events == self.fake.events_sent:
                    self.close_connection = True  # the stream breaks off
                    return
                time.sleep(0.01)
            self._chunk(b"data: [DONE]\n\n")
            self._chunk(b"")
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the client aborted the request

    def _chunk(self, text: bytes) -> None:
        self.wfile.write(b"%x\r\n%s\r\n" % (len(text), text))
        self.wfile.flush()

    def log_message(self, *_: object) -> None:
        return


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("-m", dest="module")
    parser.add_argument("--model", type=Path)
    parser.add_argument("--port", type=int)
    known, _ = parser.parse_known_args(arguments)
    print("fake vLLM starts", flush=True)
    FakeVllm(known.model, known.port).serve()


if __name__ == "__main__":
    main(sys.argv[1:])
