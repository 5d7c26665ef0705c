"""Answers from an OpenAI-compatible server."""

from __future__ import annotations

import json
from collections.abc import Generator, Iterator, Mapping, Sequence
from http import HTTPStatus

import httpx

from astrai_cli.chat.conversation import Message
from astrai_cli.chat.source import Ended
from astrai_cli.config import ChatConfig, SamplingConfig
from astrai_cli.engine.request import Usage
from astrai_cli.errors import ServerError
from astrai_cli.remote import (
    CONNECT_SECONDS,
    MAX_ERROR_BYTES,
    Chunk,
    ChunkReader,
    ModelList,
    base_url,
    error_text,
)


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
            base_url=base_url(url),
            headers=headers,
            timeout=httpx.Timeout(config.read_timeout, connect=CONNECT_SECONDS),
        )
        try:
            self._model = model or self.list_models()[0]
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
                        raise ServerError(f"{self._client.base_url}: {error_text(chunk.error)}")
                    if chunk.usage is not None:
                        usage = Usage(chunk.usage.prompt_tokens, chunk.usage.completion_tokens)
                    for choice in chunk.choices:
                        if choice.delta.content:
                            yield choice.delta.content
                        reason = choice.finish_reason or reason
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        yield Ended(reason, usage)

    def list_models(self) -> list[str]:
        """The ids of the server's models. Raises ServerError where there is none."""
        try:
            with self._client.stream("GET", "models") as response:
                self._check(response)
                return ModelList.ids(_read(response), self._client.base_url)
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def stats(self) -> Mapping[str, object]:
        return {}

    def close(self) -> None:
        self._client.close()

    def _check(self, response: httpx.Response) -> None:
        if response.is_success:
            return
        try:
            body: object = json.loads(_read(response))
        except ValueError:
            body = None
        detail = error_text(body) if body else response.reason_phrase
        if response.status_code == HTTPStatus.UNAUTHORIZED:
            detail += "; the key is that of --api-key or ASTRAI_API_KEY"
        raise ServerError(f"{response.url}: {response.status_code}: {detail}")

    def _unreachable(self, error: httpx.HTTPError) -> ServerError:
        return ServerError(f"{self._client.base_url}: {error or type(error).__name__}")


def _read(response: httpx.Response) -> bytes:
    """The start of a body that ought to be short."""
    body = b""
    for part in response.iter_bytes():
        body += part
        if len(body) > MAX_ERROR_BYTES:
            break
    return body[:MAX_ERROR_BYTES]


def _chunks(response: httpx.Response) -> Iterator[Chunk]:
    reader = ChunkReader(response.url)
    for text in response.iter_text():
        yield from reader.feed(text)
    # The last line may have no end.
    yield from reader.feed("\n")
