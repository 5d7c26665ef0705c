"""The Starlette app: which path leads where."""

from __future__ import annotations

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from astrai_cli.errors import AstraiError
from astrai_cli.serving.anthropic.builder import AnthropicResponseBuilder
from astrai_cli.serving.anthropic.count import TokenCounter
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.errors import error_response
from astrai_cli.serving.metrics import CountResponses
from astrai_cli.serving.models import ModelEndpoints
from astrai_cli.serving.openai.chat import OpenAIResponseBuilder
from astrai_cli.serving.openai.completions import CompletionResponseBuilder
from astrai_cli.serving.openapi import OpenApiEndpoints
from astrai_cli.serving.page import ChatPage
from astrai_cli.serving.prometheus import CONTENT_TYPE
from astrai_cli.serving.protocol import ProtocolHandler
from astrai_cli.serving.responses.builder import ResponsesBuilder
from astrai_cli.serving.sessions import SessionEndpoints
from astrai_cli.serving.transport.access import Access
from astrai_cli.serving.transport.middleware import RequestLog
from astrai_cli.worker.client import WorkerState


def create_app(engine: ServingEngine, access: Access) -> ASGIApp:
    """The HTTP API of one served model, for whom `access` lets in."""
    routes = create_routes(engine, access)
    app = Starlette(routes=routes, exception_handlers=dict.fromkeys(_HANDLED, _error_response))
    app.router.redirect_slashes = False
    paths = {route.endpoint: route.path for route in routes}
    return RequestLog(CountResponses(access.guard(app), engine.metrics, paths))


def create_routes(engine: ServingEngine, access: Access) -> list[Route]:
    """Which path leads where."""
    endpoints = _Endpoints(engine)
    models = ModelEndpoints(engine)
    sessions = SessionEndpoints(engine)
    openapi = OpenApiEndpoints(root_path=access.root_path, has_keys=bool(access.keys))
    return [
        Route("/", ChatPage().get),
        Route("/v1/chat/completions", endpoints.chat_completions, methods=["POST"]),
        Route("/v1/completions", endpoints.completions, methods=["POST"]),
        Route("/v1/responses", endpoints.responses, methods=["POST"]),
        Route("/v1/messages", endpoints.messages, methods=["POST"]),
        Route("/v1/messages/count_tokens", TokenCounter(engine).answer, methods=["POST"]),
        Route("/v1/models", models.list),
        Route("/v1/models/{model:path}", models.get),
        Route("/v1/sessions/{session_id:path}/reset", sessions.reset, methods=["POST"]),
        Route("/v1/sessions/{session_id:path}", sessions.delete, methods=["DELETE"]),
        Route("/openapi.json", openapi.document),
        Route("/docs", openapi.page),
        Route("/health", endpoints.health),
        Route("/stats", endpoints.stats),
        Route("/metrics", endpoints.metrics),
    ]


_HANDLED = (AstraiError, ValidationError, HTTPException, Exception)


class _Endpoints:
    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    async def chat_completions(self, request: Request) -> Response:
        return await ProtocolHandler(
            request, self._engine, OpenAIResponseBuilder(self._engine.api_dialect)
        ).handle()

    async def completions(self, request: Request) -> Response:
        return await ProtocolHandler(
            request, self._engine, CompletionResponseBuilder(self._engine.api_dialect)
        ).handle()

    async def responses(self, request: Request) -> Response:
        return await ProtocolHandler(request, self._engine, ResponsesBuilder()).handle()

    async def messages(self, request: Request) -> Response:
        return await ProtocolHandler(request, self._engine, AnthropicResponseBuilder()).handle()

    async def health(self, _request: Request) -> Response:
        state = self._engine.client.state
        if state is WorkerState.READY:
            return JSONResponse({"status": "ok", "model_loaded": True})
        body = {
            "status": state.value,
            "model_loaded": False,
            "detail": f"the engine is {state.value}",
        }
        return JSONResponse(body, 503)

    async def stats(self, _request: Request) -> Response:
        return JSONResponse(await self._engine.get_stats())

    async def metrics(self, _request: Request) -> Response:
        page = await self._engine.metrics.page(self._engine.client)
        return Response(page, media_type=CONTENT_TYPE)


def _error_response(request: Request, error: Exception) -> Response:
    return error_response(request.scope["path"], error)
