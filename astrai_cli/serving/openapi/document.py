"""The OpenAPI document, made of the operations and of the models that read their requests."""

from __future__ import annotations

from collections.abc import Mapping
from http import HTTPStatus
from importlib.metadata import version
from itertools import chain
from typing import Any

from astrai_cli.engine.sessions import MAX_ID_LENGTH
from astrai_cli.serving.errors import is_anthropic
from astrai_cli.serving.openapi.anthropic_answers import AnthropicError
from astrai_cli.serving.openapi.openai_answers import Error
from astrai_cli.serving.openapi.operations import OPERATIONS, SESSION_HEADER, Operation
from astrai_cli.serving.openapi.schema import describe
from astrai_cli.serving.transport.keys import OPEN_PATHS

OPENAPI_VERSION = "3.1.1"
_JSON = "application/json"
_ABOUT = (
    "A model on this machine, in the protocols of OpenAI and Anthropic. A null stands for a field "
    "left out. Requests that are no HTTP, or come on one connection too many, are refused in the "
    "shape of OpenAI's errors before it is known which path they ask for; so are those whose "
    "headers are too large (431) or too slow (408). Other paths get 404, and other methods 405."
)
# By the connection, whatever the path.
_ALWAYS = (408, 431)
_ID_HEADERS = ("x-request-id", "request-id")
_HEADERS = {
    "x-request-id": "The request's id, as in the server's log.",
    "request-id": "The same, where Anthropic's clients look for it.",
    "retry-after": "Seconds after which trying again may help.",
    "www-authenticate": "Bearer.",
}
_SECURITY = {
    "bearer": {"type": "http", "scheme": "bearer"},
    "key": {"type": "apiKey", "in": "header", "name": "x-api-key"},
}


def openapi_document(*, root_path: str = "", has_keys: bool = False) -> dict[str, Any]:
    """The document of one server. has_keys: whether it asks for keys."""
    types = {*chain.from_iterable(operation.types for operation in OPERATIONS)}
    schemas, components = describe([*types, Error, AnthropicError])
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        described = _operation(operation, schemas, has_keys)
        paths.setdefault(operation.path, {})[operation.method] = described
    return {
        "openapi": OPENAPI_VERSION,
        "info": {"title": "astrai", "version": version("astrai"), "description": _ABOUT},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "headers": {
                name: {"description": about, "schema": {"type": "string"}}
                for name, about in _HEADERS.items()
            },
            **({"securitySchemes": _SECURITY} if has_keys else {}),
        },
    }


def _operation(operation: Operation, schemas: Mapping[Any, Any], has_keys: bool) -> dict[str, Any]:
    is_locked = has_keys and operation.path not in OPEN_PATHS
    described: dict[str, Any] = {
        "operationId": f"{operation.method} {operation.path}",
        "summary": operation.summary,
        "responses": _responses(operation, schemas, is_locked),
    }
    if parameters := _parameters(operation):
        described["parameters"] = parameters
    if operation.request is not None:
        content = {_JSON: {"schema": schemas[operation.request]}}
        described["requestBody"] = {"required": True, "content": content}
    if is_locked:
        described["security"] = [{name: []} for name in _SECURITY]
    return described


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    parameters = [
        {"name": name, "in": "path", "required": True, "schema": schema}
        for name, schema in operation.parameters.items()
    ]
    if operation.takes_session:
        about = f"The session, unless the body names it: up to {MAX_ID_LENGTH} characters."
        schema = {"type": "string"}
        parameters.append(
            {"name": SESSION_HEADER, "in": "header", "schema": schema, "description": about}
        )
    return parameters


def _responses(operation: Operation, schemas: Mapping[Any, Any], is_locked: bool) -> dict[str, Any]:
    error = schemas[AnthropicError if is_anthropic(operation.path) else Error]
    statuses: dict[int, Any] = dict.fromkeys(_ALWAYS, schemas[Error])
    if is_locked:
        statuses[HTTPStatus.UNAUTHORIZED] = error
    if operation.method != "get":
        statuses[HTTPStatus.FORBIDDEN] = error
    for status, body in operation.errors.items():
        statuses[status] = error if body is None else schemas[body]
    failures = {
        str(int(status)): _response(status, {_JSON: {"schema": body}})
        for status, body in sorted(statuses.items())
    }
    return {"200": _response(HTTPStatus.OK, _content(operation, schemas)), **failures}


def _response(status: int, content: Mapping[str, Any]) -> dict[str, Any]:
    names = [*_ID_HEADERS]
    if status in {HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE}:
        names.append("retry-after")
    if status == HTTPStatus.UNAUTHORIZED:
        names.append("www-authenticate")
    return {
        "description": HTTPStatus(status).phrase,
        "headers": {name: {"$ref": f"#/components/headers/{name}"} for name in names},
        "content": content,
    }


def _content(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    if isinstance(operation.answer, str):
        return {operation.answer: {"schema": {"type": "string"}}}
    content = {_JSON: {"schema": schemas[operation.answer]}}
    if operation.events is not None:
        content["text/event-stream"] = {"schema": _event(operation, schemas)}
    return content


def _event(operation: Operation, schemas: Mapping[Any, Any]) -> dict[str, Any]:
    """One event of a stream, as the tools read this version that know streams."""
    text = {
        "type": "string",
        "contentMediaType": _JSON,
        "contentSchema": schemas[operation.events],
    }
    end = operation.last_data
    return {
        "type": "object",
        "properties": {
            "event": {"type": "string"},
            "data": text if end is None else {"anyOf": [text, {"const": end}]},
        },
        "required": ["data"],
    }
