"""What clients of an OpenAI-compatible server share: its address, chunks, errors in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx
from pydantic import BaseModel, ValidationError

from astrai_cli.errors import InvalidInputError, ServerError

CONNECT_SECONDS = 10.0
MAX_ERROR_BYTES = 2**16
_MAX_EVENT_CHARS = 2**20


class Delta(BaseModel):
    """What a chunk adds to the answer."""

    content: str | None = None
    reasoning_content: str | None = None


class Choice(BaseModel):
    """One answer of a chunk."""

    delta: Delta = Delta()
    finish_reason: str | None = None


class TokenCounts(BaseModel):
    """The `usage` of an answer."""

    prompt_tokens: int
    completion_tokens: int


class Chunk(BaseModel):
    """The part of a streamed chunk that is used here."""

    choices: list[Choice] = []
    usage: TokenCounts | None = None
    error: object = None


class ModelList(BaseModel):
    """The answer of `GET /v1/models`."""

    class Entry(BaseModel):
        id: str

    data: list[Entry]

    @classmethod
    def ids(cls, body: bytes, url: httpx.URL) -> list[str]:
        """The ids of the models listed. Raises ServerError where there is none."""
        try:
            listed = cls.model_validate_json(body)
        except ValidationError as error:
            raise ServerError(f"{url}models: is not a list of models") from error
        if not listed.data:
            raise ServerError(f"{url}models: lists no model")
        return [entry.id for entry in listed.data]


def base_url(url: str) -> httpx.URL:
    """Where the paths of the API begin: `/v1` for a URL that has no path.

    Raises InvalidInputError for what is no http or https URL.
    """
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


def error_text(body: Any) -> str:
    """What an error object says, on one line, whichever of the usual shapes it has."""
    for key in ("error", "message", "detail"):
        if isinstance(body, dict) and body.get(key):
            body = body[key]
    return " ".join(str(body).split())


class ChunkReader:
    """Finds the chunks in an event stream that arrives in pieces of any size."""

    def __init__(self, url: httpx.URL) -> None:
        self._url = url
        self._held = ""

    def feed(self, text: str) -> Iterator[Chunk]:
        """The chunks whose lines end in `text`.

        Raises ServerError for a line that is too long or holds no chunk.
        """
        *lines, self._held = (self._held + text).split("\n")
        for line in lines:
            field, _, value = line.partition(":")
            if field == "data" and value.strip() not in ("", "[DONE]"):
                yield self._parse(value)
        if len(self._held) > _MAX_EVENT_CHARS:
            raise ServerError(f"{self._url}: sent a line of over {_MAX_EVENT_CHARS} characters")

    def _parse(self, value: str) -> Chunk:
        try:
            return Chunk.model_validate_json(value)
        except ValidationError as error:
            raise ServerError(f"{self._url}: sent a chunk that is not one") from error
