"""One HTTP connection of one worker, with a deadline for the whole answer and retries of the transport only.

What this catches: connections refused, reset or cut, which say nothing about the model and are tried
again. What it never repeats: an answer of any status, and a request that ran out of time; a second try
would be another sample.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from validation.errors import UserError

CONNECT = 10.0  # seconds to connect


class Unreachable(Exception):
    """Connection refused, reset or cut. ``attempts`` were made."""

    def __init__(self, message: str, attempts: int = 1) -> None:
        super().__init__(message)
        self.attempts = attempts


class OutOfTime(Exception):
    """The whole answer did not come within the time allowed."""


@dataclass
class Answer:
    """An answer, complete: ``events`` are (clock, data) of a stream; otherwise ``body``. Clock:
    monotonic seconds."""

    status: int
    body: bytes = b""
    events: list[tuple[float, str]] = field(default_factory=list)
    sent: float = 0.0
    ended: float = 0.0
    attempts: int = 1


class Channel:
    """A kept-alive connection to ``url``; used by one thread, closed from any."""

    def __init__(self, url: str, headers: dict[str, str] | None = None) -> None:
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(f"'{url}' is not a server's address; give http://HOST:PORT")
        self.secure, self.host, self.port = parts.scheme == "https", parts.hostname, parts.port
        self.root = parts.path.rstrip("/")
        self.headers = {"Content-Type": "application/json", **(headers or {})}
        self._connection: http.client.HTTPConnection | None = None
        self._socket: socket.socket | None = None

    def exchange(self, method: str, path: str, body: Any, timeout: float, stream: bool = False) -> Answer:
        """One request and its whole answer. Unreachable, OutOfTime; a connection gone stale is renewed
        once."""
        stale = self._connection is not None
        try:
            return self._exchange(method, path, body, time.monotonic() + timeout, stream)
        except Unreachable:
            if not stale:
                raise
            return self._exchange(method, path, body, time.monotonic() + timeout, stream)

    def _exchange(self, method: str, path: str, body: Any, limit: float, stream: bool) -> Answer:
        sent = time.monotonic()
        try:
            connection = self._connect()
            connection.sock.settimeout(max(0.001, limit - time.monotonic()))
            payload = None if body is None else json.dumps(body).encode()
            connection.request(method, self.root + path, payload, self.headers)
            reply = connection.getresponse()
            answer = Answer(reply.status, sent=sent)
            if stream and reply.status == 200:
                answer.events = list(self._events(reply, limit))
            else:
                answer.body = self._read(reply, limit)
        except TimeoutError:
            self.close()
            if time.monotonic() < limit:
                raise Unreachable(f"no connection within {CONNECT:.0f} s") from None
            raise OutOfTime from None
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise Unreachable(f"{type(error).__name__}: {error}") from None
        answer.ended = time.monotonic()
        if reply.will_close:
            self.close()
        return answer

    def _connect(self) -> http.client.HTTPConnection:
        if self._connection is None:
            kind = http.client.HTTPSConnection if self.secure else http.client.HTTPConnection
            made = kind(self.host, self.port, timeout=CONNECT)
            made.connect()
            made.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._connection, self._socket = made, made.sock
        return self._connection

    def _read(self, reply: http.client.HTTPResponse, limit: float) -> bytes:
        parts = []
        while part := reply.read1(1 << 20):
            parts.append(part)
            self._limit(limit)
        if reply.length:  # read1 does not tell a body that was cut from one that is whole
            raise http.client.IncompleteRead(b"", reply.length)
        return b"".join(parts)

    def _events(self, reply: http.client.HTTPResponse, limit: float) -> Iterator[tuple[float, str]]:
        """Data of server-sent events up to [DONE]; a stream that ends without it was cut."""
        while line := reply.readline():
            text = line.decode("utf-8", "replace").strip()
            if text.startswith("data:"):
                data = text[5:].strip()
                if data == "[DONE]":
                    reply.read()
                    return
                yield time.monotonic(), data
            self._limit(limit)
        raise ConnectionResetError("the stream was cut")

    def _limit(self, limit: float) -> None:
        left = limit - time.monotonic()
        if left <= 0:
            raise TimeoutError
        if (
            self._socket is not None and self._socket.fileno() >= 0
        ):  # closed after the last byte of a last answer
            self._socket.settimeout(left)

    def close(self) -> None:
        """Give the connection up; a thread that waits on it gets an error at once."""
        connection, self._connection = self._connection, None
        if self._socket is not None:
            with contextlib.suppress(OSError):  # closed already
                self._socket.shutdown(socket.SHUT_RDWR)
        if connection is not None:
            connection.close()


@dataclass(frozen=True)
class Retries:
    """``attempts`` in all; waits ``first`` seconds before the second, twice that before the next, up
    to ``longest``."""

    attempts: int = 5
    first: float = 0.2
    longest: float = 5.0

    def run(self, send: Callable[[], Answer], give_up: Callable[[], bool]) -> Answer:
        """The first complete answer. Unreachable after the last attempt, or when ``give_up`` says that
        it is in vain."""
        for attempt in range(1, self.attempts + 1):
            try:
                answer = send()
            except Unreachable as error:
                if attempt == self.attempts or give_up():
                    raise Unreachable(str(error), attempt) from None
                time.sleep(min(self.longest, self.first * 2 ** (attempt - 1)))
                if give_up():
                    raise Unreachable(str(error), attempt) from None
            else:
                answer.attempts = attempt
                return answer
        raise AssertionError("attempts is at least 1")
