"""`POST /v1/messages/count_tokens`: the tokens a prompt would have, without running it."""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from astrai_cli.serving.anthropic.builder import prepare_conversation
from astrai_cli.serving.anthropic.requests import ConversationBody
from astrai_cli.serving.conversation import count_prompt
from astrai_cli.serving.engine import ServingEngine
from astrai_cli.serving.sessions import session_of
from astrai_cli.serving.transport.http import read_body


class TokenCounter:
    """Counts exactly what `POST /v1/messages` would give as all its input tokens."""

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    async def answer(self, request: Request) -> Response:
        raw = await read_body(request, self._engine.client.max_request_bytes)
        body = ConversationBody.model_validate_json(raw)
        session_id = session_of(body.session_id, request.headers)
        return JSONResponse(
            {"input_tokens": await asyncio.to_thread(self._count, body, session_id)}
        )

    def _count(self, body: ConversationBody, session_id: str | None) -> int:
        chat = prepare_conversation(body, self._engine, session_id)
        return count_prompt(chat, self._engine)
