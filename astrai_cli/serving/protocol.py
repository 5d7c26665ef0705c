"""From an HTTP request to an answer, for every protocol: one handler, one builder a protocol."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import AsyncGenerator
from typing import Any, Generic

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from astrai_cli.engine.request import Event, Finish, Piece, Usage
from astrai_cli.serving.builder import Body, ResponseBuilder, ResponseContext
from astrai_cli.serving.choice import Choice, News, ReasoningCounter
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import problem_of
from astrai_cli.serving.sessions import session_of
from astrai_cli.serving.transcripts import ChatPrompt
from astrai_cli.serving.transport.http import read_body, until_disconnect
from astrai_cli.serving.transport.sse import EventStream
from astrai_cli.worker.streams import ChoiceEvent


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
        session_id = session_of(body.session_id, self._request.headers)
        ctx, prompt = await asyncio.to_thread(self._builder.prepare, body, self._engine, session_id)
        events = self._engine.generate_choices(ctx.requests, ctx.n)
        answers = Answers(self._engine, self._builder, ctx, prompt)
        handle = self._handle_stream if ctx.stream else self._handle_non_stream
        return await handle(events, answers)

    async def _handle_stream(
        self, events: AsyncGenerator[ChoiceEvent, None], answers: Answers[Body]
    ) -> Response:
        """Wait for the first event, so that an error before it is answered with its status."""
        reader = EventReader(events)
        try:
            first = reader.wait_first(self._engine.streaming_preflight_timeout)
            await until_disconnect(self._request.receive, first)
        except BaseException:
            await reader.aclose()
            raise
        return EventStream(
            _chunks(reader, answers), reader, sign_of_life=self._builder.sign_of_life
        )

    async def _handle_non_stream(
        self, events: AsyncGenerator[ChoiceEvent, None], answers: Answers[Body]
    ) -> Response:
        await until_disconnect(self._request.receive, _collect(events, answers))
        return JSONResponse(answers.response())


class Answers(Generic[Body]):
    """The choices of one request on their way to its client."""

    def __init__(
        self,
        engine: ServingEngine,
        builder: ResponseBuilder[Body],
        ctx: ResponseContext,
        prompt: ChatPrompt | None,
    ) -> None:
        self._engine = engine
        self._builder = builder
        self._prompt = prompt
        self._ctx = ctx
        self._choices = [
            Choice(
                index,
                ctx.make_parser(),
                self._make_counter(),
                stop_token_ids=ctx.request.stop_token_ids,
                shows_reasoning=ctx.shows_reasoning,
            )
            for index in range(ctx.n_choices)
        ]

    def _make_counter(self) -> ReasoningCounter | None:
        if not self._ctx.request.write_special:
            return None
        return ReasoningCounter(self._ctx.make_parser(), self._ctx.token_bytes)

    def take(self, index: int, event: Event) -> tuple[Choice, News]:
        """Add an event to its choice; what ended well is remembered in its session.

        Raises as Choice.take does.
        """
        choice = self._choices[index]
        news = choice.take(event)
        session_id = self._ctx.request.session_id
        if isinstance(event, Finish) and session_id and self._prompt and not choice.is_cut:
            message = self._builder.message(self._ctx, choice)
            self._engine.remember(session_id, self._prompt, message, choice.token_ids)
        return choice, news

    def start(self, first: Event) -> str:
        """What to send before the first event."""
        return self._builder.format_stream_start(self._ctx, _prompt_usage(first))

    def chunk(self, index: int, event: Event) -> str:
        """Take an event; what to send of it."""
        choice, news = self.take(index, event)
        if isinstance(event, Finish):
            return self._builder.format_choice_end(self._ctx, choice, news)
        return self._builder.format_chunk(self._ctx, choice, news)

    def end(self) -> str:
        return self._builder.format_stream_end(self._ctx, self._choices)

    def error(self, error: Exception) -> str:
        return self._builder.format_stream_error(problem_of(error))

    def response(self) -> dict[str, Any]:
        return self._builder.format_response(self._ctx, self._choices)


class EventReader:
    """The events of a request, whose first one can be waited for without taking it."""

    def __init__(self, events: AsyncGenerator[ChoiceEvent, None]) -> None:
        self._events = events
        self._first = asyncio.create_task(_next(events))

    async def wait_first(self, timeout: float | None) -> None:
        """Wait for the first event, or `timeout` seconds. Raises what comes in its place."""
        await asyncio.wait({self._first}, timeout=timeout)
        if self._first.done():
            self._first.result()

    async def __aiter__(self) -> AsyncGenerator[ChoiceEvent, None]:
        yield await self._first
        async for event in self._events:
            yield event

    async def aclose(self) -> None:
        """End the request, where it has not ended."""
        self._first.cancel()
        await asyncio.gather(self._first, return_exceptions=True)
        await self._events.aclose()


async def _chunks(reader: EventReader, answers: Answers[Any]) -> AsyncGenerator[str, None]:
    is_first = True
    try:
        async for index, event in reader:
            start = answers.start(event) if is_first else ""
            is_first = False
            if chunk := start + answers.chunk(index, event):
                yield chunk
        yield answers.end()
    except Exception as error:
        yield answers.error(error)


async def _next(events: AsyncGenerator[ChoiceEvent, None]) -> ChoiceEvent:
    return await anext(events)


def _prompt_usage(first: Event) -> Usage:
    """The usage when the prompt had been run, as the first event tells it."""
    usage = first.prompt if isinstance(first, Piece) else first.usage
    assert usage is not None
    return dataclasses.replace(usage, completion_tokens=0)


async def _collect(events: AsyncGenerator[ChoiceEvent, None], answers: Answers[Any]) -> None:
    async for event in events:
        answers.take(*event)
