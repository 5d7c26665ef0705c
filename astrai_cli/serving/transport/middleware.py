"""Around every request: its id, its line of log, its path, and the bound that all bodies share."""

from __future__ import annotations

import logging
import time

from starlette.responses import RedirectResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from astrai_cli.errors import OverloadedError
from astrai_cli.serving.transport.request_id import REQUEST_ID, new_request_id

log = logging.getLogger("astrai.access")

MAX_LOGGED_PATH = 256

# Asked for every few seconds by whoever watches the server.
QUIET_PATHS = {"/health", "/stats", "/metrics"}


class RequestLog:
    """ASGI middleware: gives each request an id, which its response has, and logs how it ended.

    OpenAI's clients look for it in `x-request-id`, Anthropic's in `request-id`.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = new_request_id()
        REQUEST_ID.set(request_id)
        headers = [(name, request_id.encode()) for name in (b"x-request-id", b"request-id")]
        started = time.perf_counter()
        status = 0

        async def send_with_id(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], *headers]
            await send(message)

        try:
            await self._app(scope, receive, send_with_id)
        finally:
            log.log(
                logging.DEBUG if scope["path"] in QUIET_PATHS else logging.INFO,
                "method=%s path=%s status=%d seconds=%.3f id=%s",
                scope["method"],
                scope["raw_path"].decode("ascii", "backslashreplace")[:MAX_LOGGED_PATH],
                status,
                time.perf_counter() - started,
                request_id,
            )


class RootPath:
    """ASGI middleware: takes a proxy's prefix off the paths of requests that come with it.

    Who asks for the prefix alone is sent to the page, whose own addresses begin below it.
    """

    def __init__(self, app: ASGIApp, root_path: str) -> None:
        self._app = app
        self._root_path = root_path

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if self._root_path and path.startswith(f"{self._root_path}/"):
            # In place, for those around this too.
            scope["path"] = path.removeprefix(self._root_path)
        elif self._root_path and path == self._root_path:
            await RedirectResponse(f"{path.rpartition('/')[2]}/")(scope, receive, send)
            return
        await self._app(scope, receive, send)


class BoundBodies:
    """ASGI middleware: bounds the bytes of all bodies together, of requests in flight.

    A request whose body comes over it gets an OverloadedError where it reads.
    """

    def __init__(self, app: ASGIApp, most_bytes: int) -> None:
        self._app = app
        self._most_bytes = most_bytes
        self._held = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        own = 0

        async def receive_counted() -> Message:
            nonlocal own
            message = await receive()
            size = len(message.get("body", b""))
            own += size
            self._held += size
            if size and self._held > self._most_bytes:
                raise OverloadedError(
                    f"the bodies of all requests have more than {self._most_bytes} bytes"
                )
            return message

        try:
            await self._app(scope, receive_counted, send)
        finally:
            self._held -= own
