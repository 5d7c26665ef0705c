"""Sessions over HTTP: how a request names one, and how one is ended."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from astrai_cli.serving.engine import ServingEngine

SESSION_HEADERS = ("x-session-id", "session_id", "x-session-affinity")
"""Headers that name a session, the first of them that is there."""


def session_of(named_in_body: str | None, headers: Mapping[str, str]) -> str | None:
    """The session a request belongs to: the body's word goes before any header's."""
    if named_in_body is not None:
        return named_in_body
    return next((headers[name] for name in SESSION_HEADERS if name in headers), None)


class SessionEndpoints:
    """`DELETE /v1/sessions/ID` forgets a session, `POST /v1/sessions/ID/reset` what was said in it.

    Unknown sessions are answered with 404, those with requests in flight with 409.
    """

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    async def delete(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        await self._engine.delete_session(session_id)
        return JSONResponse({"id": session_id, "object": "session", "deleted": True})

    async def reset(self, request: Request) -> Response:
        session_id = request.path_params["session_id"]
        await self._engine.reset_session(session_id)
        return JSONResponse({"id": session_id, "object": "session", "reset": True})
