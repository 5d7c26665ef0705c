"""Answers: collecting the events of a request, whole or as they come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator
from dataclasses import dataclass

from astrai_cli.engine.request import Event, Finish, FinishReason, Piece, TokenLogprob, Usage
from astrai_cli.errors import ExecutionError, error_of


@dataclass(frozen=True, slots=True)
class Completion:
    """A whole answer; as a string, its text.

    text: without the stop string, special and end tokens. token_ids: all that were
    generated, an end token included, so there are usage.completion_tokens of them.
    matched_stop: the stop string that ended it and was removed, or None.
    logprobs: where asked for, of all token_ids but an end token.
    """

    text: str
    token_ids: tuple[int, ...]
    finish_reason: FinishReason
    usage: Usage
    matched_stop: str | None = None
    logprobs: tuple[TokenLogprob, ...] = ()

    def __str__(self) -> str:
        return self.text


class GenerateResult:
    """One request's answer: a sink to hand to the engine, and two ways to wait for it.

    Holds one piece a generated token at most, so the context bounds it.
    """

    def __init__(self, callback: Callable[[Event], None] | None = None) -> None:
        """callback is called with every event, on the engine thread; it must not block."""
        self._callback = callback
        self._pieces: list[Piece] = []
        self._finish: Finish | None = None
        self._finished = threading.Condition()
        self._news = threading.Event()

    def put(self, event: Event) -> None:
        """The sink: takes pieces, then one Finish."""
        if isinstance(event, Piece):
            self._pieces.append(event)
        else:
            with self._finished:
                self._finish = event
                self._finished.notify_all()
        self._news.set()
        if self._callback:
            self._callback(event)

    @property
    def done(self) -> bool:
        return self._finish is not None

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until there is something new to stream; False where `timeout` seconds passed."""
        return self._news.wait(timeout)

    def wait_completion(self, timeout: float | None = None) -> Completion:
        """The whole answer; one that was cancelled is as long as it got.

        Raises TimeoutError after `timeout` seconds, and the AstraiError that ended
        the request: ExecutionError where a step failed, EngineUnavailableError where
        the engine died, OverloadedError and DeadlineExceededError out of time.
        """
        with self._finished:
            if not self._finished.wait_for(lambda: self.done, timeout):
                raise TimeoutError(f"no whole answer within {timeout} seconds")
        return self._completion()

    def stream(self) -> Generator[Piece, None, Completion]:
        """The pieces as they come; the generator returns the whole answer. For one reader.

        Raises as wait_completion does, after the last piece.
        """
        read = 0
        while True:
            self.wait()
            self._news.clear()
            # Looked at before the pieces are: the Finish comes after the last of them.
            done = self.done
            while read < len(self._pieces):
                yield self._pieces[read]
                read += 1
            if done:
                self._news.set()
                return self._completion()

    def _completion(self) -> Completion:
        finish = self._finish
        assert finish is not None
        if finish.reason == "error":
            raise error_of(
                finish.error_code or ExecutionError.code,
                finish.error or "the request failed",
                retry_after=finish.retry_after,
            )
        return Completion(
            text="".join(piece.text for piece in self._pieces),
            token_ids=tuple(token_id for piece in self._pieces for token_id in piece.token_ids),
            finish_reason=finish.reason,
            usage=finish.usage,
            matched_stop=finish.matched_stop,
            logprobs=tuple(each for piece in self._pieces for each in piece.logprobs),
        )
