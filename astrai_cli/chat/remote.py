"""Answers from an OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from typing import Any

import httpx
from pydantic import BaseModel, ValidationError

from astrai_cli.chat.conversation import Message
from astrai_cli.chat.source import Ended
from astrai_cli.config import ChatConfig, SamplingConfig
from astrai_cli.engine.request import Usage
from astrai_cli.errors import InvalidInputError, ServerError

_CONNECT_SECONDS = 10.0
_MAX_EVENT_CHARS = 2**20
_MAX_ERROR_BYTES = 2**16


class _Delta(BaseModel):
    content: str | None = None


class _Choice(BaseModel):
    delta: _Delta = _Delta()
    finish_reason: str | None = None


class _Usage(BaseModel):
    prompt_tokens: int
    completion_tokens: int


class _Chunk(BaseModel):
    """The part of a streamed chunk that is used here."""

    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: object = None


class _Models(BaseModel):
    class Entry(BaseModel):
        id: str

    data: list[Entry]


class RemoteSource:
    """A model behind `POST /v1/chat/completions`."""

    def __init__(self, url: str, model: str | None, config: ChatConfig) -> None:
        """Open `url`; without `model`, the first one the server lists.

        Raises InvalidInputError for a URL that is none, ServerError where none is listed.
        """
        headers = {}
        if config.api_key is not None:
            headers["Authorization"] = f"Bearer {config.api_key.get_secret_value()}"
        self._client = httpx.Client(
            base_url=_base_url(url),
            headers=headers,
            timeout=httpx.Timeout(config.read_timeout, connect=_CONNECT_SECONDS),
        )
        try:
            self._model = model or self._first_model()
        except BaseException:
            self._client.close()
            raise

    @property
    def model(self) -> str:
        return self._model

    def stream(
        self, messages: Sequence[Message], sampling: SamplingConfig
    ) -> Generator[str | Ended]:
        body = {
            "model": self._model,
            "messages": [message.model_dump() for message in messages],
            "stream": True,
            "stream_options": {"include_usage": True},
            # Only what was asked for: servers refuse parameters they do not know.
            **sampling.model_dump(exclude_unset=True, exclude_none=True),
        }
        reason, usage = "stop", None
        try:
            with self._client.stream("POST", "chat/completions", json=body) as response:
                self._check(response)
                for chunk in _chunks(response):
                    if chunk.error is not None:
                        raise ServerError(f"{self._client.base_url}: {_error_text(chunk.error)}")
                    if chunk.usage is not None:
                        usage = Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                    for choice in chunk.choices:
                        if choice.delta.content:
                            yield choice.delta.content
                        reason = choice.finish_reason or reason
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        yield Ended(reason, usage)

    def stats(self) -> Mapping[str, object]:
        return {}

    def close(self) -> None:
        self._client.close()

    def _first_model(self) -> str:
        try:
            with self._client.stream("GET", "models") as response:
                self._check(response)
                listed = _Models.model_validate_json(_read(response))
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        except ValidationError as error:
            raise ServerError(f"{self._client.base_url}models: is not a list of models") from error
        if not listed.data:
            raise ServerError(f"{self._client.base_url}models: lists no model")
        return listed.data[0].id

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        try:
            body: object = json.loads(_read(response))
        except ValueError:
            body = None
        detail = _error_text(body) if body else response.reason_phrase
        raise ServerError(f"{response.url}: {response.status_code}: {detail}")

    def _unreachable(self, error: httpx.HTTPError) -> ServerError:
        return ServerError(f"{self._client.base_url}: {error or type(error).__name__}")


def _base_url(url: str) -> httpx.URL:
    try:
        parsed = httpx.URL(url)
    except httpx.InvalidURL as error:
        raise InvalidInputError(f"--url: {url!r} is not a URL: {error}", param="url") from error
    if parsed.scheme not in ("http", "https") or not parsed.host:
        raise InvalidInputError(
            f"--url: {url!r} is not an http or https URL, such as http://127.0.0.1:8000",
            param="url",
        )
    return parsed if parsed.path.strip("/") else parsed.copy_with(path="/v1")


def _read(response: httpx.Response) -> bytes:
    """The start of a body that ought to be short."""
    body = b""
    for part in response.iter_bytes():
        body += part
        if len(body) > _MAX_ERROR_BYTES:
            break
    return body[:_MAX_ERROR_BYTES]


def _chunks(response: httpx.Response) -> Iterator[_Chunk]:
    for line in _lines(response):
        field, _, value = line.partition(":")
        if field != "data" or value.strip() in ("", "[DONE]"):
            continue
        try:
            yield _Chunk.model_validate_json(value)
        except ValidationError as error:
            raise ServerError(f"{response.url}: sent a chunk that is not one") from error


def _lines(response: httpx.Response) -> Iterator[str]:
    """Lines of a stream, each of bounded length."""
    held = ""
    for text in response.iter_text():
        *lines, held = (held + text).split("\n")
        yield from (line.removesuffix("\r") for line in lines)
        if len(held) > _MAX_EVENT_CHARS:
            raise ServerError(f"{response.url}: sent a line of over {_MAX_EVENT_CHARS} characters")
    yield held


def _error_text(body: Any) -> str:
    """What an error object says, on one line, whichever of the usual shapes it has."""
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(key):
            body = body[key]
    return " ".join(str(body).split())
