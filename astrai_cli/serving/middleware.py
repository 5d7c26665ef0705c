"""Around every request: an id that the client and the log share, and one line of log."""

from __future__ import annotations

import logging
import time
import uuid

from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("astrai.access")

# Asked for every few seconds by whoever watches the server.
QUIET_PATHS = {"/health", "/stats", "/metrics"}


class RequestLog:
    """ASGI middleware: adds `x-request-id` to responses and logs how each ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{uuid.uuid4().hex}"
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            log.log(
                logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO,
                "method=%s path=%s status=%d seconds=%.3f id=%s",
                scope["method"],
                scope["raw_path"].decode("ascii", "backslashreplace"),
                status,
                time.perf_counter() - started,
                request_id,
            )
