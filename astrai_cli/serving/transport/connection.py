"""One connection: uvicorn's HTTP/1.1, with a bound on all that a client can draw out or pile up.

uvicorn bounds the time between two requests; here the headers and the body of each
have theirs too, and so have a client that does not read, the size and number of
headers, the requests sent ahead of their turn, and the connections themselves.
A connection waits in one of four phases, each with a deadline of its own that bytes
do not put off.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from enum import Enum
from typing import Self

import httptools
from uvicorn._types import (
    ASGI3Application,
    ASGIReceiveCallable,
    ASGISendCallable,
    ASGISendEvent,
    Scope,
)
from uvicorn.protocols.http.httptools_impl import (
    STATUS_LINE,
    HttpToolsProtocol,
    RequestResponseCycle,
)

from astrai_cli.config import ServeConfig
from astrai_cli.serving.errors import Problem, openai_error
from astrai_cli.serving.transport.sse import json_text

MAX_HEAD_BYTES = 2**16
"""Of a request's first line and headers, and of what stands between two bytes of its body."""
MAX_HEADERS = 128
MAX_PIPELINED = 8
"""Requests that may wait on a connection for the answer to the one before them."""
WRITE_BUFFER_BYTES = 2**16
"""What may wait to be sent, beside one chunk, before whoever makes the answer waits too."""

_BAD_REQUEST = Problem(400, "bad_request", "this is not HTTP/1.1")
_HEAD_TOO_LARGE = Problem(
    431,
    "headers_too_large",
    f"the headers are over the limit of {MAX_HEADERS} lines or {MAX_HEAD_BYTES} bytes",
)
_PIPELINED = Problem(
    429, "overloaded", f"more than {MAX_PIPELINED} requests wait on this connection"
)


@dataclass(frozen=True, slots=True)
class Bounds:
    """Of every connection to a server; times in seconds, as in NetworkOptions."""

    max_connections: int
    header_timeout: float
    body_timeout: float
    keep_alive_timeout: float
    send_timeout: float

    @classmethod
    def of(cls, serve: ServeConfig) -> Self:
        return cls(**{name: getattr(serve, name) for name in cls.__slots__})


class Phase(Enum):
    """What a connection waits for: a request, the rest of its headers or body, its answer."""

    IDLE = "idle"
    HEAD = "head"
    BODY = "body"
    ANSWER = "answer"


class BoundedConnection(HttpToolsProtocol):
    """A connection of a server; `protocol_of` makes the class for one.

    idle: the server's connections between two requests, those for longest first.
    """

    bounds: Bounds
    idle: dict[BoundedConnection, None]

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER_BYTES)
        self._beside_body = 0
        self._refusal: Problem | None = None
        self._deadline: asyncio.TimerHandle | None = None
        self._sending: asyncio.TimerHandle | None = None
        # A client that connects has something to ask.
        self._wait_for(Phase.IDLE, self.bounds.header_timeout)
        if len(self.connections) > self.bounds.max_connections:
            self._make_room()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.idle.pop(self, None)
        for timer in (self._deadline, self._sending):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._refusal is not None:
            return
        self._beside_body += len(data)
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or _BAD_REQUEST)
            return
        if self._beside_body > MAX_HEAD_BYTES:
            self._refuse(_HEAD_TOO_LARGE)

    def _parse(self, data: bytes) -> None:
        """Feed the parser, which stops at a head that asks for an upgrade and passes its body over.

        There is nothing to upgrade to, so it gets that head again without the wish.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as stop:
                data = self._head_without_upgrade() + data[stop.args[0] :]

    def _head_without_upgrade(self) -> bytes:
        version = self.parser.get_http_version().encode()
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, version)]
        lines += [b"%b: %b" % header for header in self.headers if header[0] != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._wait_for(Phase.HEAD, self.bounds.header_timeout)

    def on_header(self, name: bytes, value: bytes) -> None:
        super().on_header(name, value)
        if len(self.headers) > MAX_HEADERS:
            self._fail(_HEAD_TOO_LARGE)

    def on_headers_complete(self) -> None:
        if self.parser.get_method() == b"CONNECT":
            self._fail(_BAD_REQUEST)
        if self.parser.should_upgrade():
            return
        size = len(self.url) + sum(len(name) + len(value) for name, value in self.headers)
        if size > MAX_HEAD_BYTES:
            self._fail(_HEAD_TOO_LARGE)
        if len(self.pipeline) >= MAX_PIPELINED:
            self._fail(_PIPELINED)
        super().on_headers_complete()
        self._wait_for(Phase.BODY, self.bounds.body_timeout)

    def on_body(self, body: bytes) -> None:
        self._beside_body = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        if self.parser.should_upgrade():
            return
        self._beside_body = 0
        super().on_message_complete()
        if self.cycle.response_complete:
            self._wait_for(Phase.IDLE, self.bounds.keep_alive_timeout)
        else:
            self._wait_for(Phase.ANSWER, None)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        # Its timer would begin anew with every byte.
        self._unset_keepalive_if_required()
        if self.transport.is_closing():
            self._watch_sending()
        elif self._refusal is not None and not self._answers_earlier:
            self._refuse(self._refusal)
        elif self._phase is Phase.ANSWER and self.cycle.response_complete:
            self._wait_for(Phase.IDLE, self.bounds.keep_alive_timeout)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_sending()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._sending is not None and not self.transport.is_closing():
            self._sending.cancel()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        if cycle.scope["http_version"] == "1.0":
            app = _unchunked(app, cycle)
        super()._start_asgi_task(cycle, app)

    @property
    def _answers_earlier(self) -> bool:
        """Whether a request before the one that arrives, or may arrive, has no answer yet."""
        unanswered = self.cycle is not None and not self.cycle.response_complete
        return bool(self.pipeline) or (self._phase is not Phase.BODY and unanswered)

    def _wait_for(self, phase: Phase, seconds: float | None) -> None:
        self._phase = phase
        if phase is Phase.IDLE:
            self.idle[self] = None
        else:
            self.idle.pop(self, None)
        if self._deadline is not None:
            self._deadline.cancel()
        if seconds is not None:
            self._deadline = self.loop.call_later(seconds, self._on_deadline, seconds)

    def _on_deadline(self, seconds: float) -> None:
        if self._answers_earlier:
            # Nothing is read meanwhile, so it is not the client that is slow.
            self._wait_for(self._phase, seconds)
        elif self._phase is Phase.IDLE:
            self._close()
        else:
            what = "headers" if self._phase is Phase.HEAD else "body"
            message = f"the {what} of the request took longer than {seconds:g} seconds"
            self._refuse(Problem(408, "request_timeout", message))

    def _make_room(self) -> None:
        longest_idle = next(iter(self.idle))
        if longest_idle is not self:
            longest_idle._close()
            return
        message = f"the server has {self.bounds.max_connections} connections, all of them in use"
        self._refuse(Problem(503, "overloaded", message, headers={"retry-after": "1"}))

    def _fail(self, problem: Problem) -> None:
        """From within the parser's callbacks: stop parsing and refuse the request."""
        self._refusal = problem
        raise ValueError(problem.message)

    def _refuse(self, problem: Problem) -> None:
        """Close, with an answer unless that of the same request has begun.

        Requests before it get theirs first, unless it waits among them for the rest of its body.
        """
        self._refusal = problem
        is_in_body = self._phase is Phase.BODY
        if self._answers_earlier and not is_in_body:
            return
        if not (is_in_body and (self.pipeline or self.cycle.response_started)):
            body = json_text(openai_error(problem)).encode()
            headers = {
                "content-type": "application/json",
                "content-length": str(len(body)),
                "connection": "close",
                **problem.headers,
            }
            lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
            self.transport.write(STATUS_LINE[problem.status] + lines.encode() + b"\r\n" + body)
        self._close()

    def _close(self) -> None:
        self.idle.pop(self, None)
        self.transport.close()
        self._watch_sending()

    def _watch_sending(self) -> None:
        """Cut the connection if none of what waits to be sent is taken for a while."""
        if self._sending is not None:
            self._sending.cancel()
        waiting = self.transport.get_write_buffer_size()
        if waiting:
            self._sending = self.loop.call_later(
                self.bounds.send_timeout, self._check_sending, waiting
            )

    def _check_sending(self, waiting_before: int) -> None:
        if self.transport.get_write_buffer_size() < waiting_before:
            self._watch_sending()
        else:
            self.transport.abort()


def _unchunked(app: ASGI3Application, cycle: RequestResponseCycle) -> ASGI3Application:
    """An app for HTTP/1.0, which has no chunks: the connection's end is that of its answer.

    RFC 9112, section 6.1. uvicorn holds an answer without chunks to a length, which is told
    piece by piece.
    """
    cycle.chunked_encoding = False

    async def answer(scope: Scope, receive: ASGIReceiveCallable, send: ASGISendCallable) -> None:
        async def send_plain(message: ASGISendEvent) -> None:
            if message["type"] == "http.response.body":
                cycle.expected_content_length = len(message.get("body", b""))
            await send(message)

        await app(scope, receive, send_plain)

    return answer


def protocol_of(bounds: Bounds) -> type[BoundedConnection]:
    """The class of a server's connections."""
    return type("Connection", (BoundedConnection,), {"bounds": bounds, "idle": {}})
