"""Tasks: sequences on their way through the scheduler."""

from __future__ import annotations

import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from enum import Enum, auto
from math import inf

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.cache.base import Identity, KVCacheView
from astrai_cli.engine.images import PromptImage
from astrai_cli.engine.prompts import PreparedPrompt
from astrai_cli.engine.request import (
    Event,
    Finish,
    FinishReason,
    Usage,
)
from astrai_cli.engine.sessions import Session, Turn
from astrai_cli.errors import (
    AstraiError,
    DeadlineExceededError,
    OverloadedError,
)
from backends.base import Draw, ExecutorInfo, SequenceStep

Sink = Callable[[Event], None]
"""Takes a request's events, on the engine thread; it must not block."""

_task_ids = itertools.count()


class TaskState(Enum):
    """Where a task is: in the queue, running its prompt, answering, or done."""

    WAITING = auto()
    PREFILLING = auto()
    DECODING = auto()
    FINISHED = auto()


class Task(ABC):
    """Tokens to run through the model, and what to do with the logits.

    history holds the n_known tokens there are so far, prompt first, and the positions of an
    image's rows count as tokens; the keys and values of the first n_computed are in the
    cache. It has room for n_tokens_max. n_reused of the prompt's tokens did not have to be
    run. The n_drafted ids behind the known ones are guesses that the next step checks.
    The scheduler sets session.
    """

    session: Session

    def __init__(
        self,
        prompt: PreparedPrompt,
        n_tokens_max: int,
        sink: Sink,
        *,
        session_id: str | None = None,
        timeout: float | None = None,
    ) -> None:
        self.id = next(_task_ids)
        self.session_id = session_id
        self.n_prompt = len(prompt)
        self.history: NDArray[np.int32] = np.empty(n_tokens_max, dtype=np.int32)
        self.history[: self.n_prompt] = prompt.ids
        self._image = prompt.image
        # Tokens stand for themselves, so without an image it is the same array.
        self._identity: Identity = self.history
        if prompt.image is not None:
            self._identity = np.empty(n_tokens_max, dtype=np.int64)
            self._identity[: self.n_prompt] = prompt.identity
        self.n_known = self.n_prompt
        self.n_computed = 0
        self.n_drafted = 0
        self.state = TaskState.WAITING
        self.cancel_requested = False
        self.n_reused = 0
        self._sink = sink
        self._timeout = timeout
        self._queued_at = self._start_by = self._deadline = inf
        self._started_at: float | None = None
        self._reason: FinishReason | None = None
        self._error: AstraiError | None = None

    @property
    def n_tokens_max(self) -> int:
        return len(self.history)

    @property
    def n_pending(self) -> int:
        """Known tokens that have not been run yet."""
        return self.n_known - self.n_computed

    @property
    def identity(self) -> Identity:
        """What is at each position known so far."""
        return self._identity[: self.n_known]

    @property
    @abstractmethod
    def n_reusable(self) -> int:
        """Leading positions that need not be run where their keys and values are there."""

    @property
    def ends_with_next(self) -> bool:
        """Whether the next token is the last there is room for."""
        return self.n_known + 1 >= self.n_tokens_max

    @property
    def goes_on_unseen(self) -> bool:
        """Whether the step behind the running one needs nothing from it but its token."""
        return False

    @property
    def n_draft_max(self) -> int:
        """How many tokens may be guessed: the one behind the last of them must have room."""
        return max(0, self.n_tokens_max - self.n_known - 1)

    @property
    def expires_at(self) -> float:
        """When the task ends if it is not done, or not even started, by then (monotonic)."""
        return self._deadline if self._started_at else min(self._deadline, self._start_by)

    @property
    def seconds_run(self) -> float | None:
        """Since it first left the queue; None where it never did."""
        return time.monotonic() - self._started_at if self._started_at else None

    def enqueue(self, queue_timeout: float) -> None:
        """Enter the queue, to start within queue_timeout seconds."""
        self._queued_at = time.monotonic()
        self._start_by = self._queued_at + queue_timeout
        if self._timeout is not None:
            self._deadline = self._queued_at + self._timeout

    def start(self, n_cached: int) -> None:
        """Leave the queue, with the first n_cached positions computed."""
        self._started_at = self._started_at or time.monotonic()
        self.state = TaskState.PREFILLING
        self.skip(n_cached)

    def skip(self, n: int) -> None:
        """The next n pending tokens need not be run: their keys and values are there."""
        self.n_computed += n
        if self.n_known == self.n_prompt:
            self.n_reused += n

    def preempt(self) -> None:
        """Go back to the queue; all known tokens are pending again."""
        self.state = TaskState.WAITING
        self.n_computed = 0
        if self.n_known == self.n_prompt:
            self.n_reused = 0

    def expire(self, retry_after: float) -> None:
        """End because expires_at has passed; retry_after as in OverloadedError."""
        if self._started_at is None and self._start_by <= self._deadline:
            waited = self._start_by - self._queued_at
            message = f"no place became free within {waited:g} seconds"
            self.end("error", OverloadedError(message, retry_after=retry_after))
        else:
            message = f"the answer was not complete within {self._timeout:g} seconds"
            self.end("error", DeadlineExceededError(message))

    def next_image(self, n: int) -> PromptImage | None:
        """The image that has rows among the next n pending tokens."""
        image = self._image
        return image if image is not None and image.is_in(self.n_computed, n) else None

    def draft(self, token_ids: NDArray[np.int32]) -> None:
        """Let the next step check guesses, at most n_draft_max, of the tokens to come."""
        self.n_drafted = len(token_ids)
        self.history[self.n_known : self.n_known + self.n_drafted] = token_ids

    def share(self, n: int, view: KVCacheView, info: ExecutorInfo) -> SequenceStep:
        """The next n pending and guessed tokens, as this task's share of an executor's step."""
        start = self.n_computed
        n_rows = self._logit_rows(n)
        return SequenceStep(
            self.history[start : start + n],
            start,
            view.pages,
            n_rows,
            () if self._image is None else self._image.spans(start, n),
            self._draws(info) if n_rows else (),
        )

    def next_share(self, token_id: int, view: KVCacheView, info: ExecutorInfo) -> SequenceStep:
        """The share of the step behind the running one, where it goes on unseen.

        token_id: what stands for the token drawn in that.
        """
        draws = self._draws(info, n_unseen=1)
        return SequenceStep(np.array([token_id], np.int32), self.n_known, view.pages, draws=draws)

    def append(self, token_id: int) -> None:
        """A token was generated; it is pending."""
        self.history[self.n_known] = self._identity[self.n_known] = token_id
        self.n_known += 1
        self.state = TaskState.DECODING

    def advance(self, n: int, logits: NDArray[np.float32], drawn: Sequence[int] = ()) -> None:
        """Take note that n tokens were run and gave these logits [asked for, vocabulary].

        drawn: the tokens that the executor drew instead. Raises whatever the sink does, and
        ExecutionError where the logits are unusable.
        """
        self.n_computed += n - self.n_drafted
        if len(drawn) or len(logits):
            self._accept(logits, drawn)

    def end(self, reason: FinishReason, error: AstraiError | None = None) -> None:
        """Finish; what ended a task first is what counts."""
        if self.state is not TaskState.FINISHED:
            self.state = TaskState.FINISHED
            self._reason, self._error = reason, error

    def finish(self) -> Finish:
        """The end of a finished task, for its sink."""
        assert self._reason is not None
        error = self._error
        return Finish(
            self._reason,
            Usage(self.n_prompt, self.n_known - self.n_prompt, self.n_reused),
            error=str(error) if error else None,
            error_code=error.code if error else None,
            retry_after=error.retry_after if isinstance(error, OverloadedError) else None,
        )

    def turn(self) -> Turn | None:
        """What its session remembers of a finished task; None where it did not end well."""
        return None

    def deliver(self) -> None:
        """Send the sink its Finish."""
        self._sink(self.finish())

    def _draws(self, info: ExecutorInfo, n_unseen: int = 0) -> tuple[Draw, ...]:
        """How the executor may draw from the rows wanted; none where those are wanted.

        n_unseen: tokens by then that are not known now.
        """
        return ()

    @abstractmethod
    def _logit_rows(self, n: int) -> int:
        """How many of the next n tokens' logits this task wants, the last ones."""

    @abstractmethod
    def _accept(self, logits: NDArray[np.float32], drawn: Sequence[int]) -> None:
        """Use the logits that were wanted, or the tokens that were drawn from them."""
