"""Every error a client can see, made from exceptions in one place.

A problem says what went wrong; each protocol gives it its own JSON shape.
Messages are those of AstraiErrors and of validation; anything else is an
internal error whose text goes to the log alone.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from itertools import pairwise
from math import ceil
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from astrai_cli.errors import AstraiError, ContextNeed
from astrai_cli.serving.body import KINDS, UNSUPPORTED
from astrai_cli.serving.transport.request_id import REQUEST_ID

log = logging.getLogger(__name__)

MAX_DETAILS = 20
RETRY_AFTER_SECONDS = 1
INTERNAL_ERROR = "internal error; the server's log has the details"

# Errors of validation that say "well formed, but not this value"; all others are of shape.
BOUND_ERRORS = {
    "finite_number",
    "greater_than",
    "greater_than_equal",
    "invalid_value",
    "less_than",
    "less_than_equal",
    "literal_error",
    "string_pattern_mismatch",
    "string_too_long",
    "string_too_short",
    "too_long",
    "too_short",
}
# What the server is to blame for and the client may read of: it is full, or the model's calls
# are wrong.
_TOLD = {HTTPStatus.SERVICE_UNAVAILABLE, HTTPStatus.BAD_GATEWAY}
ANTHROPIC_PATH = "/v1/messages"
_ANTHROPIC_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}
UNSUPPORTED_ERRORS = {"extra_forbidden", UNSUPPORTED}


class RequestError(AstraiError):
    """A request that cannot be served, with the status and code of its answer."""

    def __init__(self, message: str, *, status: int, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.answer_status = status
        self.answer_code = code
        self.param = param


@dataclass(frozen=True, slots=True)
class Problem:
    """An error as HTTP shows it. `detail`: what the body's `detail` says, None for no such key.

    need: what the request needed of the context, where that was too small.
    """

    status: int
    code: str
    message: str
    param: str | None = None
    detail: Any = None
    headers: Mapping[str, str] = field(default_factory=dict)
    need: ContextNeed | None = None


def problem_of(error: Exception) -> Problem:
    """What to tell the client of an exception."""
    match error:
        case ValidationError():
            return _validation_problem(error.errors(include_url=False, include_input=False))
        case RequestError():
            return Problem(error.answer_status, error.answer_code, str(error), error.param)
        case AstraiError():
            return _astrai_problem(error)
        case HTTPException():
            phrase = HTTPStatus(error.status_code).phrase
            code = phrase.lower().replace(" ", "_")
            return Problem(error.status_code, code, phrase, headers=error.headers or {})
        case _:
            log.error("internal error", exc_info=error)
            return Problem(500, AstraiError.code, INTERNAL_ERROR)


def openai_error(problem: Problem) -> dict[str, Any]:
    """The error object of OpenAI's protocol."""
    body: dict[str, Any] = {
        "error": {
            "message": problem.message,
            "type": _openai_type(problem.status),
            "param": problem.param,
            "code": problem.code,
        }
    }
    if problem.detail is not None:
        body["detail"] = problem.detail
    return body


def anthropic_error(problem: Problem) -> dict[str, Any]:
    """The error object of Anthropic's protocol."""
    kind = _ANTHROPIC_TYPES.get(problem.status)
    if kind is None:
        kind = "invalid_request_error" if problem.status < 500 else "api_error"
    body: dict[str, Any] = {
        "type": "error",
        "error": {
            "type": kind,
            "message": problem.message,
            "param": problem.param,
            "code": problem.code,
        },
        "request_id": REQUEST_ID.get(),
    }
    if problem.code == UNSUPPORTED and problem.param == "thread":
        # By this the official client's helpers tell to send whole conversations instead.
        body["error"]["details"] = {
            "error_code": "thread_unsupported_request",
            "unsupported": ["thread"],
        }
    if problem.detail is not None:
        body["detail"] = problem.detail
    return body


def is_anthropic(path: str) -> bool:
    """Whether a path belongs to Anthropic's protocol."""
    return path == ANTHROPIC_PATH or path.startswith(f"{ANTHROPIC_PATH}/")


def error_body(path: str, problem: Problem) -> dict[str, Any]:
    """The error object of the protocol that a path belongs to."""
    return (anthropic_error if is_anthropic(path) else openai_error)(problem)


def error_response(path: str, error: Exception) -> Response:
    """The answer to a request to `path` that ended with an error."""
    problem = problem_of(error)
    headers = dict(problem.headers)
    if problem.status == HTTPStatus.UNAUTHORIZED:
        headers["www-authenticate"] = "Bearer"
    return JSONResponse(error_body(path, problem), problem.status, headers=headers)


def _openai_type(status: int) -> str:
    if status == HTTPStatus.TOO_MANY_REQUESTS:
        return "rate_limit_error"
    return "invalid_request_error" if status < 500 else "server_error"


def _astrai_problem(error: AstraiError) -> Problem:
    if error.status >= 500 and error.status not in _TOLD:
        # Its message may quote a backend's, and that may hold anything.
        log.error("request failed: %s", error)
        return Problem(error.status, error.code, INTERNAL_ERROR)
    message = str(error)
    headers = {}
    if error.status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        seconds = getattr(error, "retry_after", RETRY_AFTER_SECONDS)
        if seconds is not None:
            headers["retry-after"] = str(ceil(seconds))
    return Problem(
        error.status,
        error.code,
        message,
        getattr(error, "param", None),
        message if error.status == HTTPStatus.SERVICE_UNAVAILABLE else None,
        headers,
        getattr(error, "need", None),
    )


def _validation_problem(errors: Sequence[ErrorDetails]) -> Problem:
    first = next((each for each in errors if _is_of_shape(each)), errors[0])
    message = f"{_path(first)}: {first['msg']}" if first["loc"] else first["msg"]
    param = _path(first) or None
    if not _is_of_shape(first):
        code = UNSUPPORTED if first["type"] in UNSUPPORTED_ERRORS else "invalid_value"
        return Problem(400, code, message, param)
    detail = [
        {"loc": ["body", *map(_clip, each["loc"])], "msg": each["msg"], "type": each["type"]}
        for each in errors[:MAX_DETAILS]
    ]
    return Problem(422, "invalid_request", message, param, detail)


def _is_of_shape(error: ErrorDetails) -> bool:
    return error["type"] not in BOUND_ERRORS | UNSUPPORTED_ERRORS


def _path(error: ErrorDetails) -> str:
    """Where the error is in the body. A union of kinds in a list adds its tag to that."""
    loc = error["loc"]
    steps = [
        str(_clip(step))
        for before, step in pairwise(("", *loc))
        if not (isinstance(before, int) and step in KINDS)
    ]
    return ".".join(steps)


def _clip(step: str | int) -> str | int:
    """A key of the client's own may be of any length."""
    return step if isinstance(step, int) or len(step) <= 80 else step[:79] + "…"
