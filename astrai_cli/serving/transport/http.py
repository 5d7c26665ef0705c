"""What every endpoint needs of HTTP: a bounded body, and to notice that the client is gone."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.types import Receive

from astrai_cli.errors import RequestCancelledError, RequestTooLargeError
from astrai_cli.serving.errors import RequestError

Result = TypeVar("Result")


async def read_body(request: Request, limit: int) -> bytes:
    """The request's body.

    Raises RequestTooLargeError as soon as it is, or says it is, over `limit` bytes, and
    RequestError (415) for one that is compressed.
    """
    _check_encoding(request)
    if int(request.headers.get("content-length", 0)) > limit:
        raise _too_large(limit)
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > limit:
                raise _too_large(limit)
    except ClientDisconnect:
        raise _gone() from None
    return bytes(body)


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result:
    """The result of `work`, which is cancelled when the client disconnects first.

    Raises RequestCancelledError then. The request's body must have been read.
    """
    task = asyncio.create_task(work)
    watch = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise _gone()
        return task.result()
    finally:
        task.cancel()
        watch.cancel()
        await asyncio.gather(task, watch, return_exceptions=True)


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _check_encoding(request: Request) -> None:
    for value in request.headers.getlist("content-encoding"):
        if value.lower() not in {"", "identity"}:
            raise RequestError(
                f"the request body has the content-encoding {value[:100]!r}; send it without one",
                status=415,
                code="unsupported_content_encoding",
            )


def _too_large(limit: int) -> RequestTooLargeError:
    return RequestTooLargeError(f"the request body is over the limit of {limit} bytes")


def _gone() -> RequestCancelledError:
    return RequestCancelledError("the client has disconnected")
