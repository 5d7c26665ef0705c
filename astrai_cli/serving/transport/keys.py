"""API keys: where the server has them from, and who must carry one."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from astrai_cli.config import ServeConfig
from astrai_cli.config.base import is_visible_ascii
from astrai_cli.errors import InvalidInputError
from astrai_cli.serving.errors import RequestError, error_response

OPEN_PATHS = frozenset({"/", "/docs", "/health", "/openapi.json"})
"""What is answered without a key: it tells nothing of what anyone asked."""

MAX_KEY_FILE_BYTES = 2**16


def read_keys(serve: ServeConfig) -> tuple[str, ...]:
    """The keys that clients may carry; none: the server asks for none.

    Raises InvalidInputError for a file that has no key, or one that no header can carry.
    """
    keys = [] if serve.api_key is None else [serve.api_key.get_secret_value()]
    if serve.api_key_file is not None:
        keys += _keys_of_file(serve.api_key_file)
    return tuple(dict.fromkeys(keys))


def _keys_of_file(file: Path) -> list[str]:
    try:
        with file.open("rb") as opened:
            raw = opened.read(MAX_KEY_FILE_BYTES + 1)
    except OSError as error:
        raise _bad_file(file, str(error.strerror)) from error
    if len(raw) > MAX_KEY_FILE_BYTES:
        raise _bad_file(file, f"has more than {MAX_KEY_FILE_BYTES} bytes")
    lines = [line.strip() for line in raw.decode("utf-8", "replace").splitlines()]
    for number, line in enumerate(lines, 1):
        if line and not is_visible_ascii(line):
            raise _bad_file(file, f"line {number} is not visible ASCII")
    keys = [line for line in lines if line]
    if not keys:
        raise _bad_file(file, "has no key")
    return keys


def _bad_file(file: Path, reason: str) -> InvalidInputError:
    return InvalidInputError(f"{file}: {reason}", param="api_key_file")


class RequireKey:
    """ASGI middleware: 401 for requests without one of the keys, but to `OPEN_PATHS`."""

    def __init__(self, app: ASGIApp, keys: Sequence[str]) -> None:
        self._app = app
        # Digests have one length, so that the time of a comparison tells nothing of a key.
        self._digests = [_digest(key) for key in keys]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            try:
                self._check(Headers(scope=scope))
            except RequestError as error:
                response = error_response(scope["path"], error)
                await response(scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _check(self, headers: Headers) -> None:
        key = _key_of(headers)
        if key is None:
            raise _unauthorized("the request has no API key: send Authorization: Bearer KEY")
        digest = _digest(key)
        # All of them, so that neither does the time tell which one it was.
        if not sum(hmac.compare_digest(digest, each) for each in self._digests):
            raise _unauthorized("the API key is not one of this server's")


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _key_of(headers: Headers) -> str | None:
    """The key a request carries: OpenAI's clients send a bearer, Anthropic's `x-api-key`."""
    scheme, _, bearer = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and bearer.strip():
        return bearer.strip()
    return headers.get("x-api-key")


def _unauthorized(message: str) -> RequestError:
    return RequestError(message, status=401, code="invalid_api_key")
