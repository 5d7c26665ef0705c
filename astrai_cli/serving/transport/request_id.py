"""The id of the request that is being answered, for all that is said of it."""

from __future__ import annotations

import uuid
from contextvars import ContextVar

REQUEST_ID: ContextVar[str | None] = ContextVar("request_id", default=None)
"""Set for each request by `RequestLog`, as its tasks each run in a copy of its context."""


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"
