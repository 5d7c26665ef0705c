"""Server-sent events: their text, and the response that streams them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing, suppress
from typing import Any, Protocol

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from astrai_cli.errors import RequestCancelledError
from astrai_cli.serving.transport.http import until_disconnect

KEEP_ALIVE_SECONDS = 15.0
KEEP_ALIVE = ": keep-alive\n\n"
"""A comment, which is no event."""

json_text = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
"""A value as compact JSON."""

# Not line ends in this format, but clients that split text with str.splitlines think so.
_LINE_ENDS = str.maketrans({"\x85": "\\u0085", "\u2028": "\\u2028", "\u2029": "\\u2029"})


def data_event(data: Mapping[str, Any]) -> str:
    """An event without a name, carrying JSON."""
    text = json_text(data)
    return f"data: {text if text.isascii() else text.translate(_LINE_ENDS)}\n\n"


def named_event(name: str, data: Mapping[str, Any]) -> str:
    """An event with a name, carrying JSON."""
    return f"event: {name}\n{data_event(data)}"


class Closable(Protocol):
    """What is given up when the stream ends."""

    async def aclose(self) -> None: ...


class EventStream(Response):
    """Sends chunks of events as they come, and signs of life while none do.

    `source` is closed in the end, however the response ends. sign_of_life: is sent after
    every `keep_alive` seconds without a chunk.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        chunks: AsyncGenerator[str, None],
        source: Closable,
        keep_alive: float = KEEP_ALIVE_SECONDS,
        sign_of_life: str = KEEP_ALIVE,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.init_headers({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._chunks = chunks
        self._source = source
        self._keep_alive = keep_alive
        self._sign_of_life = sign_of_life.encode()
        self._last_sent = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async with aclosing(self._source), aclosing(self._chunks):
            with suppress(RequestCancelledError):
                await until_disconnect(receive, self._stream(send))

    async def _stream(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        self._last_sent = clock()
        keeper = asyncio.create_task(self._send_keep_alives(send))
        try:
            async for chunk in self._chunks:
                await send(_body(chunk.encode()))
                self._last_sent = clock()
        finally:
            keeper.cancel()
        await send(_body(b"", more=False))

    async def _send_keep_alives(self, send: Send) -> None:
        clock = asyncio.get_running_loop().time
        while True:
            idle = clock() - self._last_sent
            if idle < self._keep_alive:
                await asyncio.sleep(self._keep_alive - idle)
            else:
                await send(_body(self._sign_of_life))
                self._last_sent = clock()


def _body(data: bytes, *, more: bool = True) -> Message:
    return {"type": "http.response.body", "body": data, "more_body": more}
