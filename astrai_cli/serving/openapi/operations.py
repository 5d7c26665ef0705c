"""What can be asked of the server: a line for each method of a path. A new endpoint adds one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import BaseModel
from typing_extensions import TypedDict

from astrai_cli.engine.sessions import MAX_ID_LENGTH
from astrai_cli.serving.anthropic.requests import ConversationBody, MessagesRequest
from astrai_cli.serving.openai.completions import CompletionRequest
from astrai_cli.serving.openai.requests import ChatCompletionRequest
from astrai_cli.serving.openapi import anthropic_answers as anthropic
from astrai_cli.serving.openapi import openai_answers as openai
from astrai_cli.serving.openapi import responses_answers as responses
from astrai_cli.serving.prometheus import CONTENT_TYPE
from astrai_cli.serving.responses.requests import ResponseRequest
from astrai_cli.serving.sessions import SESSION_HEADERS


class Health(TypedDict):
    """Whether requests are served. detail is there where they are not."""

    status: Literal["ok"]
    model_loaded: Literal[True]


class Unhealthy(TypedDict):
    """Why requests are not served."""

    status: Literal["starting", "restarting", "failed", "stopped"]
    model_loaded: Literal[False]
    detail: str


class SessionDeleted(TypedDict):
    """A session that is no more."""

    id: str
    object: Literal["session"]
    deleted: Literal[True]


class SessionReset(TypedDict):
    """A session that is empty again."""

    id: str
    object: Literal["session"]
    reset: Literal[True]


@dataclass(frozen=True, slots=True)
class Operation:
    """One method of one path.

    request: the body's model. answer: the type of a JSON answer, or a media type of
    text. events: the type of what the events of a streamed answer carry, where there is
    one; last_data: what the last one carries instead, where it is no JSON. errors: statuses
    and, where the body is not the error object of the path's protocol, its type.
    parameters: JSON Schemas of what the path names. takes_session: whether headers may
    name a session.
    """

    method: Literal["get", "post", "delete"]
    path: str
    summary: str
    answer: Any
    request: type[BaseModel] | None = None
    events: Any = None
    last_data: str | None = None
    errors: Mapping[int, Any] = field(default_factory=dict)
    parameters: Mapping[str, Any] = field(default_factory=dict)
    takes_session: bool = False

    @property
    def types(self) -> list[Any]:
        """Those that have a JSON Schema."""
        named = [self.request, self.answer, self.events, *self.errors.values()]
        return [each for each in named if each is not None and not isinstance(each, str)]


_READING: Mapping[int, Any] = dict.fromkeys((400, 404, 413, 415, 422, 429, 500, 503))
_GENERATING: Mapping[int, Any] = {**_READING, 502: None, 504: None}
_SESSION: Mapping[str, Any] = {"session_id": {"type": "string", "maxLength": MAX_ID_LENGTH}}
_ENDING: Mapping[int, Any] = dict.fromkeys((400, 404, 409, 500, 503))

OPERATIONS: tuple[Operation, ...] = (
    Operation(
        "post",
        "/v1/chat/completions",
        "Answer a conversation (OpenAI)",
        openai.ChatCompletion,
        request=ChatCompletionRequest,
        events=openai.ChatCompletionChunk | openai.Error,
        last_data="[DONE]",
        errors=_GENERATING,
        takes_session=True,
    ),
    Operation(
        "post",
        "/v1/completions",
        "Continue texts (OpenAI)",
        openai.Completion,
        request=CompletionRequest,
        events=openai.Completion | openai.Error,
        last_data="[DONE]",
        errors=_GENERATING,
        takes_session=True,
    ),
    Operation(
        "post",
        "/v1/responses",
        "Answer a conversation in items (OpenAI)",
        responses.Response,
        request=ResponseRequest,
        events=responses.Event,
        errors=_GENERATING,
        takes_session=True,
    ),
    Operation(
        "post",
        "/v1/messages",
        "Answer a conversation (Anthropic)",
        anthropic.Message,
        request=MessagesRequest,
        events=anthropic.Event,
        errors=_GENERATING,
        takes_session=True,
    ),
    Operation(
        "post",
        "/v1/messages/count_tokens",
        "Count the tokens of a conversation (Anthropic)",
        anthropic.TokenCount,
        request=ConversationBody,
        errors=_READING,
        takes_session=True,
    ),
    Operation("get", "/v1/models", "The models there are", openai.ModelList, errors={503: None}),
    Operation(
        "get",
        "/v1/models/{model}",
        "One of the models",
        openai.Model,
        errors={404: None, 503: None},
        parameters={"model": {"type": "string"}},
    ),
    Operation(
        "post",
        "/v1/sessions/{session_id}/reset",
        "Forget what was said in a session",
        SessionReset,
        errors=_ENDING,
        parameters=_SESSION,
    ),
    Operation(
        "delete",
        "/v1/sessions/{session_id}",
        "Forget a session",
        SessionDeleted,
        errors=_ENDING,
        parameters=_SESSION,
    ),
    Operation("get", "/health", "Whether requests are served", Health, errors={503: Unhealthy}),
    Operation("get", "/stats", "The engine's counters", dict[str, Any], errors={503: None}),
    Operation("get", "/metrics", "The same and more, for Prometheus", CONTENT_TYPE),
)

SESSION_HEADER = SESSION_HEADERS[0]
