from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest
from starlette.types import Message

from astrai_cli.serving.transport.sse import KEEP_ALIVE, EventStream, data_event, named_event


@pytest.mark.parametrize(
    "text", ["plain", "Grüße 東京 👋", "a\nb\r\n", "\u2028 \u2029 \x85 \x0b", '"\\']
)
def test_an_event_is_one_line_whatever_splits_it(text: str) -> None:
    event = data_event({"text": text})
    assert len(event.splitlines()) == 2
    assert json.loads(event.removeprefix("data: ")) == {"text": text}


class Client:
    """An ASGI client that notes what it is sent; it leaves when `leave` is set."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.leave = asyncio.Event()

    async def send(self, message: Message) -> None:
        self.sent.append(message)

    async def receive(self) -> Message:
        await self.leave.wait()
        return {"type": "http.disconnect"}

    @property
    def bodies(self) -> list[bytes]:
        return [message["body"] for message in self.sent if "body" in message]


class Source:
    """A generator that notes whether it was closed."""

    def __init__(self, *chunks: str, pause: float = 0.0, endless: bool = False) -> None:
        self.closed = False
        self.events = self._events(chunks, pause, endless)

    async def _events(
        self, chunks: tuple[str, ...], pause: float, endless: bool
    ) -> AsyncGenerator[str, None]:
        try:
            for chunk in chunks:
                yield chunk
                await asyncio.sleep(pause)
            if endless:
                await asyncio.Event().wait()
        finally:
            self.closed = True


async def chunks_of(source: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    async for chunk in source:
        yield chunk


def respond(client: Client, source: Source, **options: Any) -> asyncio.Task[None]:
    response = EventStream(chunks_of(source.events), source.events, **options)
    return asyncio.create_task(response({"type": "http"}, client.receive, client.send))


def test_chunks_are_sent_with_headers_that_stop_buffering() -> None:
    async def run() -> None:
        client, source = Client(), Source("a", "b")
        await respond(client, source)
        assert dict(client.sent[0]["headers"]) == {
            b"content-type": b"text/event-stream; charset=utf-8",
            b"cache-control": b"no-cache",
            b"x-accel-buffering": b"no",
        }
        assert client.bodies == [b"a", b"b", b""]
        assert not client.sent[-1]["more_body"]
        assert source.closed

    asyncio.run(run())


@pytest.mark.parametrize("sign", [KEEP_ALIVE, named_event("ping", {"type": "ping"})])
def test_an_idle_stream_shows_that_it_lives(sign: str) -> None:
    async def run() -> None:
        client, source = Client(), Source("a", "b", pause=0.2)
        await respond(client, source, keep_alive=0.05, sign_of_life=sign)
        assert sign.encode() in client.bodies[1:-2]
        assert [body for body in client.bodies if body != sign.encode()] == [b"a", b"b", b""]

    asyncio.run(run())


@pytest.mark.parametrize("gone_before_the_start", [True, False])
def test_a_client_that_leaves_closes_the_source(gone_before_the_start: bool) -> None:
    async def run() -> None:
        client, source = Client(), Source("a", endless=True)
        if gone_before_the_start:
            await anext(source.events)
            client.leave.set()
        task = respond(client, source)
        await asyncio.sleep(0.05)
        client.leave.set()
        await task
        assert source.closed

    asyncio.run(run())
