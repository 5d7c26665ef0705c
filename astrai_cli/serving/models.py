"""The served model, as the clients of every protocol list it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from astrai_cli.serving.engine import ServingEngine


class ModelEndpoints:
    """`GET /v1/models` and `GET /v1/models/ID`.

    OpenAI's and Anthropic's clients ask at the same paths; an answer has the fields of both.
    """

    def __init__(self, engine: ServingEngine) -> None:
        self._engine = engine

    async def list(self, _request: Request) -> Response:
        model_id = self._engine.model_id
        ends = {"has_more": False, "first_id": model_id, "last_id": model_id}
        return JSONResponse({"object": "list", "data": [self._model()], **ends})

    async def get(self, request: Request) -> Response:
        self._engine.check_model(request.path_params["model"])
        return JSONResponse(self._model())

    def _model(self) -> dict[str, Any]:
        engine = self._engine
        created_at = datetime.fromtimestamp(engine.created, UTC)
        return {
            "id": engine.model_id,
            "object": "model",
            "created": engine.created,
            "owned_by": "astrai",
            "context_length": engine.max_context,
            "type": "model",
            "display_name": engine.model_id,
            "created_at": created_at.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "lifecycle": "active",
            "max_input_tokens": engine.max_context,
            "max_tokens": engine.max_context,
        }
