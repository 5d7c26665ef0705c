"""One streamed request after the other, each timed as its client sees it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import httpx
from pydantic import SecretStr

from astrai_cli.benchmark.load.requests import LoadRequest
from astrai_cli.errors import ServerError
from astrai_cli.remote import CONNECT_SECONDS, Chunk, ChunkReader, ModelList, base_url


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a request; moments in seconds, of one clock.

    text_times: when each chunk with text came. Token counts are the server's own, or, where
    it tells none, the chunks with text. error: its kind, None for an answer that ended well.
    """

    started: float
    ended: float
    text_times: tuple[float, ...] = ()
    text: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None

    @property
    def ttft(self) -> float | None:
        """Seconds to the first text; None for an answer without any."""
        return self.text_times[0] - self.started if self.text_times else None

    @property
    def tpot(self) -> float | None:
        """Seconds of each token after the first; None for an answer of fewer than two."""
        if self.completion_tokens < 2 or not self.text_times:
            return None
        return (self.text_times[-1] - self.text_times[0]) / (self.completion_tokens - 1)

    @property
    def latency(self) -> float:
        """Seconds from the request to the end of its answer."""
        return self.ended - self.started


class _Answer:
    """Takes the chunks of an answer as they come."""

    def __init__(self) -> None:
        self._times: list[float] = []
        self._texts: list[str] = []
        self._prompt_tokens = 0
        self._completion_tokens: int | None = None
        self._finished = False
        self._error: str | None = None

    def take(self, chunk: Chunk) -> None:
        if chunk.error is not None:
            self._error = "error in the stream"
        if chunk.usage is not None:
            self._prompt_tokens = chunk.usage.prompt_tokens
            self._completion_tokens = chunk.usage.completion_tokens
        for choice in chunk.choices:
            if text := choice.delta.content or choice.delta.reasoning_content:
                self._times.append(time.perf_counter())
                self._texts.append(text)
            self._finished |= choice.finish_reason is not None

    def outcome(self, started: float, error: str | None) -> Outcome:
        error = error or self._error or (None if self._finished else "cut off")
        counted = self._completion_tokens
        return Outcome(
            started=started,
            ended=time.perf_counter(),
            text_times=tuple(self._times),
            text="".join(self._texts),
            prompt_tokens=self._prompt_tokens,
            completion_tokens=len(self._times) if counted is None else counted,
            error=error,
        )


class LoadClient:
    """Asks one server. An asynchronous context manager: leaving it closes the connections."""

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: SecretStr | None = None,
        timeout: float = 300.0,
        fields: Mapping[str, Any] | None = None,
    ) -> None:
        """timeout: seconds a request may take. fields: what all requests ask for besides.

        Without `model`, the first one the server lists. Raises InvalidInputError for a
        URL that is none.
        """
        key = api_key and api_key.get_secret_value()
        self._client = httpx.AsyncClient(
            base_url=base_url(url),
            headers={"Authorization": f"Bearer {key}"} if key else {},
            timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS, pool=None),
            # A server may close an idle connection just as the next request is written to it,
            # and nobody could tell that from a request it lost.
            limits=httpx.Limits(max_connections=None, max_keepalive_connections=0),
        )
        self._model = model
        self._timeout = timeout
        self._fields = dict(fields or {})

    async def __aenter__(self) -> LoadClient:
        """Raises ServerError where a model must be looked up and cannot be."""
        if self._model is None:
            try:
                self._model = await self._first_model()
            except BaseException:
                await self._client.aclose()
                raise
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self._client.aclose()

    async def send(self, request: LoadRequest) -> Outcome:
        """Ask, and read the answer to its end; whatever fails is the outcome's error."""
        started = time.perf_counter()
        answer = _Answer()
        error = None
        try:
            async with asyncio.timeout(self._timeout):
                error = await self._read(request, answer)
        except (TimeoutError, httpx.TimeoutException):
            error = "timeout"
        except httpx.ConnectError:
            error = "no connection"
        except httpx.HTTPError:
            error = "lost connection"
        except ServerError:
            error = "malformed stream"
        return answer.outcome(started, error)

    async def _read(self, request: LoadRequest, answer: _Answer) -> str | None:
        body = {
            "model": self._model,
            "messages": request.messages,
            "max_tokens": request.max_tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
            **self._fields,
        }
        async with self._client.stream("POST", "chat/completions", json=body) as response:
            if not response.is_success:
                return f"HTTP {response.status_code}"
            reader = ChunkReader(response.url)
            async for text in response.aiter_text():
                for chunk in reader.feed(text):
                    answer.take(chunk)
        return None

    async def _first_model(self) -> str:
        try:
            response = await self._client.get("models")
            response.raise_for_status()
        except httpx.HTTPError as error:
            what = str(error).partition("\n")[0] or type(error).__name__
            raise ServerError(f"{self._client.base_url}: {what}") from error
        return ModelList.ids(response.content, self._client.base_url)[0]
