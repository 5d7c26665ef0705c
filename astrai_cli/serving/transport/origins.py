"""Web pages that use the server: those of allowed origins may, those of others may not."""

from __future__ import annotations

from collections.abc import Sequence
from ipaddress import ip_address
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Receive, Scope, Send

from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.errors import RequestError, error_response

_READING = {"GET", "HEAD", "OPTIONS"}


class RefuseForeignPages:
    """ASGI middleware: 403 for what web pages of other origins ask to be done.

    A browser sends a page's simple requests to any server, its own machine's too, and
    only keeps the answer from the page: whoever lets a stranger's page run would run
    the model for it. Requests that only read, and programs that are no browsers, pass.

    A page may also reach a server on this machine under a name of its own that it lets
    resolve to it (DNS rebinding), and be of the same origin. So a server that listens on
    loopback takes no name but loopback's for its own.
    """

    def __init__(self, app: ASGIApp, origins: Sequence[str], *, loopback: bool) -> None:
        self._app = app
        self._origins = frozenset(origins)
        self._loopback = loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] not in _READING:
            headers = Headers(scope=scope)
            origin = headers.get("origin")
            if origin is not None and not self._is_allowed(origin, headers.get("host", "")):
                error = RequestError(
                    f"pages of {origin[:100]!r} may not use this server; "
                    "--cors-origin names those that may",
                    status=403,
                    code="origin_not_allowed",
                )
                response = error_response(scope["path"], error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _is_allowed(self, origin: str, host: str) -> bool:
        if "*" in self._origins or origin in self._origins:
            return True
        is_own = origin.partition("://")[2] == host != ""
        return is_own and (not self._loopback or is_loopback(_name_of(host)))


def _name_of(host: str) -> str:
    """The name or address in a Host header; empty where it is malformed."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def is_loopback(host: str) -> bool:
    """Whether a name or address stands for the machine itself and for nothing else."""
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def check_origins(origins: Sequence[str]) -> None:
    """Raises InvalidInputError for what no browser would send as an origin."""
    for origin in origins:
        scheme, _, rest = origin.partition("://")
        if origin != "*" and not (scheme and rest and "/" not in rest and origin == origin.lower()):
            raise InvalidInputError(
                f"cors_origin {origin!r} is neither * nor an origin, such as "
                "https://chat.example.com: a scheme and a host in lower case, and no path",
                param="cors_origin",
            )


def allow_origins(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """With the headers by which browsers let pages of these origins read the answers."""
    if not origins:
        return app
    options: dict[str, Any] = {
        "allow_origins": origins,
        "allow_methods": ["GET", "POST", "DELETE"],
        "allow_headers": ["*"],
        "allow_private_network": True,
        "expose_headers": ["x-request-id", "request-id", "retry-after"],
    }
    return CORSMiddleware(app, **options)
