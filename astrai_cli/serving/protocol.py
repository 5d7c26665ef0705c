"""From an HTTP request to an answer, for every protocol: one handler, one builder a protocol."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from astrai_cli.engine.request import (
    Event,
    Finish,
    GenerationRequest,
    Piece,
    SamplingParams,
)
from astrai_cli.errors import EngineUnavailableError
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import Problem, problem_of
from astrai_cli.serving.http import read_body, until_disconnect
from astrai_cli.serving.sse import EventStream

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class ResponseContext:
    """What a builder remembers of a request while it is answered."""

    id: str
    model: str
    stream: bool
    include_usage: bool
    sampling: SamplingParams
    max_tokens: int | None
    ignore_eos: bool
    created: int = field(default_factory=lambda: int(time.time()))


Prepared = tuple[tuple[int, ...], ResponseContext, tuple[str, ...]]
"""The prompt's token ids, the context, the stop strings."""


class ResponseBuilder(ABC, Generic[Body]):
    """One protocol: how its requests are read and its answers written."""

    request_model: type[Body]

    @abstractmethod
    def prepare(self, request: Body, engine: ServingEngine) -> Prepared:
        """Check a request and make its prompt. May take long; runs beside the event loop."""

    @abstractmethod
    def format_stream_start(self, ctx: ResponseContext) -> str:
        """The events before the first piece."""

    @abstractmethod
    def format_chunk(self, ctx: ResponseContext, piece: Piece) -> str:
        """The events of a piece that has text."""

    @abstractmethod
    def format_stream_end(self, ctx: ResponseContext, finish: Finish) -> str:
        """The events that end an answer."""

    @abstractmethod
    def format_response(self, ctx: ResponseContext, text: str, finish: Finish) -> dict[str, Any]:
        """The body of an answer that is not streamed."""

    @abstractmethod
    def format_error(self, problem: Problem) -> dict[str, Any]:
        """The body of an answer that is an error."""

    @abstractmethod
    def format_stream_error(self, problem: Problem) -> str:
        """The event of an error after the answer began."""


class ProtocolHandler(Generic[Body]):
    """Answers one HTTP request in the protocol of its builder."""

    def __init__(
        self, request: Request, engine: ServingEngine, builder: ResponseBuilder[Body]
    ) -> None:
        self._request = request
        self._engine = engine
        self._builder = builder

    async def handle(self) -> Response:
        """The answer. An error before an answer begins is a response with its status."""
        try:
            return await self._answer()
        except Exception as error:
            problem = problem_of(error)
            body = self._builder.format_error(problem)
            return JSONResponse(body, problem.status, headers=problem.headers)

    async def _answer(self) -> Response:
        raw = await read_body(self._request, self._engine.client.max_request_bytes)
        body = self._builder.request_model.model_validate_json(raw)
        prompt, ctx, stops = await asyncio.to_thread(self._builder.prepare, body, self._engine)
        events = self._engine.generate_async(
            GenerationRequest(
                prompt=prompt,
                sampling=ctx.sampling,
                max_tokens=ctx.max_tokens,
                stop=stops,
                ignore_eos=ctx.ignore_eos,
            )
        )
        handle = self._handle_stream if ctx.stream else self._handle_non_stream
        return await handle(events, ctx)

    async def _handle_stream(
        self, events: AsyncGenerator[Event, None], ctx: ResponseContext
    ) -> Response:
        """Wait for the first event, so that an error before it is answered with its status."""
        first = await until_disconnect(self._request.receive, _next(events))
        return EventStream(self._chunks(first, events, ctx), source=events)

    async def _handle_non_stream(
        self, events: AsyncGenerator[Event, None], ctx: ResponseContext
    ) -> Response:
        text, finish = await until_disconnect(self._request.receive, _collect(events))
        return JSONResponse(self._builder.format_response(ctx, text, finish))

    async def _chunks(
        self, first: Event, events: AsyncGenerator[Event, None], ctx: ResponseContext
    ) -> AsyncGenerator[str, None]:
        try:
            yield self._builder.format_stream_start(ctx) + self._format(ctx, first)
            async for event in events:
                if chunk := self._format(ctx, event):
                    yield chunk
        except Exception as error:
            yield self._builder.format_stream_error(problem_of(error))

    def _format(self, ctx: ResponseContext, event: Event) -> str:
        if isinstance(event, Finish):
            return self._builder.format_stream_end(ctx, event)
        return self._builder.format_chunk(ctx, event) if event.text else ""


async def _next(events: AsyncGenerator[Event, None]) -> Event:
    return await anext(events)


async def _collect(events: AsyncGenerator[Event, None]) -> tuple[str, Finish]:
    """The whole text, and the finish that every answer ends with."""
    texts: list[str] = []
    async for event in events:
        if isinstance(event, Finish):
            return "".join(texts), event
        texts.append(event.text)
    raise EngineUnavailableError("the answer has no end")
