"""JSON over HTTP to a vLLM server, within time limits, and abortable from another thread."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from longstride.errors import GeneratorError

_SHOWN_CHARACTERS = 400


class Deadline:
    """A time limit that knows what it is for."""

    def __init__(self, seconds: float, awaited: str, setting: str) -> None:
        """Start the clock.

        Args:
            seconds: the limit.
            awaited: what is awaited, for the message: "vLLM to load the weights".
            setting: recipe field that holds the limit.
        """
        self.seconds, self.awaited, self.setting = seconds, awaited, setting
        self._end = time.monotonic() + seconds

    def remaining(self) -> float:
        """Seconds left, above 0.

        Raises:
            TimeoutError: none is left.
        """
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        return left

    def message(self) -> str:
        """Say what was awaited, for how long, and what to change."""
        return (
            f"waited {self.seconds:g} s for {self.awaited}; look into the server's log, or raise "
            f"{self.setting}"
        )


class ServerConnection:
    """Requests to one server. Methods may be called from several threads."""

    def __init__(self, url: str, circumstances: Callable[[], str] = lambda: "") -> None:
        """Remember where the server is; nothing is opened yet.

        Args:
            url: `http://host:port`, with a path where the server sits behind one.
            circumstances: text for error messages: whether the server lives, the end of its log.
        """
        parts = urlsplit(url)
        secure = parts.scheme == "https"
        self.url = url.rstrip("/")
        self._class = http.client.HTTPSConnection if secure else http.client.HTTPConnection
        self._host, self._port = parts.hostname or "", parts.port or (443 if secure else 80)
        self._prefix = parts.path.rstrip("/")
        self.circumstances = circumstances
        self._lock = Lock()
        self._open: set[socket.socket] = set()
        self._aborted = False

    def post(self, path: str, body: dict[str, Any], deadline: Deadline) -> dict[str, Any]:
        """Send JSON, return the JSON object that is answered.

        Raises:
            GeneratorError: no connection, too late, an error status, or no JSON object.
        """
        with self._exchange(path, body, deadline) as (_, response):
            text = response.read()
        return self._decoded(text, path)

    def stream(
        self, path: str, body: dict[str, Any], deadline: Deadline
    ) -> Generator[dict[str, Any], None, None]:
        """Send JSON, yield the JSON objects of a stream of server-sent events as they come.

        Closing the iterator closes the connection, which makes vLLM abort the request.

        Raises:
            GeneratorError: as for `post`, or the stream ends before its end mark.
        """
        with self._exchange(path, body, deadline) as (sock, response):
            while True:
                sock.settimeout(deadline.remaining())
                line = response.readline().strip()
                if line == b"data: [DONE]":
                    return
                if line.startswith(b"data: "):
                    yield self._decoded(line[len(b"data: ") :], path)
                elif not line and response.isclosed():
                    raise http.client.IncompleteRead(b"")

    def healthy(self, seconds: float) -> bool:
        """Whether the server says, within so many seconds, that it is up."""
        connection = self._class(self._host, self._port, timeout=seconds)
        try:
            connection.request("GET", f"{self._prefix}/health")
            return connection.getresponse().status == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()

    def abort(self) -> None:
        """Break every request in flight and refuse new ones until `resume`."""
        with self._lock:
            self._aborted = True
            for sock in self._open:
                _shut(sock)

    def resume(self) -> None:
        """Allow requests again."""
        with self._lock:
            self._aborted = False

    @contextmanager
    def _exchange(
        self, path: str, body: dict[str, Any], deadline: Deadline
    ) -> Iterator[tuple[socket.socket, http.client.HTTPResponse]]:
        """Post JSON; yield the socket and the answer once its status is known to be good."""
        connection = self._class(self._host, self._port)
        sock: socket.socket | None = None
        try:
            sock = self._connect(connection, deadline)
            connection.request(
                "POST", self._prefix + path, json.dumps(body), {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            sock.settimeout(deadline.remaining())
            if response.status != http.HTTPStatus.OK:
                raise GeneratorError(self._refused(path, response.status, response.read()))
            yield sock, response
        except TimeoutError as error:
            raise GeneratorError(deadline.message() + self.circumstances()) from error
        except (OSError, http.client.HTTPException) as error:
            if self._aborted:
                raise GeneratorError("given up, because another request failed") from error
            raise GeneratorError(
                f"the connection to vLLM at {self.url} broke while waiting for {deadline.awaited} "
                f"({type(error).__name__}: {error}){self.circumstances()}"
            ) from error
        finally:
            with self._lock:
                if sock is not None:
                    self._open.discard(sock)
            connection.close()

    def _connect(self, connection: http.client.HTTPConnection, deadline: Deadline) -> socket.socket:
        """Connect, and make the socket known to `abort`."""
        connection.timeout = deadline.remaining()
        connection.connect()
        sock: socket.socket = connection.sock
        with self._lock:
            if self._aborted:
                raise ConnectionAbortedError("the batch was given up")
            self._open.add(sock)
        return sock

    def _decoded(self, text: bytes, path: str) -> dict[str, Any]:
        try:
            value = json.loads(text)
        except ValueError as error:
            raise GeneratorError(
                f"vLLM answered {path} with something that is not JSON: {_shown(text)}"
            ) from error
        if not isinstance(value, dict):
            raise GeneratorError(
                f"vLLM answered {path} with a {type(value).__name__}, not an object: {_shown(text)}"
            )
        if "error" in value:
            raise GeneratorError(self._refused(path, http.HTTPStatus.OK, text))
        return value

    def _refused(self, path: str, status: int, text: bytes) -> str:
        return f"vLLM answered {path} with status {status}: {_shown(text)}{self.circumstances()}"


def _shut(sock: socket.socket) -> None:
    try:
        sock.shutdown(socket.SHUT_RDWR)
    except OSError:
        return  # the other side was faster


def _shown(text: bytes) -> str:
    shown = text.decode("utf-8", "replace")
    return shown if len(shown) <= _SHOWN_CHARACTERS else shown[:_SHOWN_CHARACTERS] + " ..."
