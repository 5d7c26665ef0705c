"""Tasks: sequences on their way through the scheduler."""

from __future__ import annotations

import dataclasses
import itertools
import secrets
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Sequence
from enum import Enum, auto

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.cache.base import KVCacheView
from astrai_cli.engine.detokenize import Detokenizer, TokenBytes
from astrai_cli.engine.request import (
    Event,
    Finish,
    FinishReason,
    GenerationRequest,
    Piece,
    Usage,
)
from astrai_cli.engine.sampling import MAX_SEED, SamplingPipeline
from astrai_cli.engine.stops import StopMatcher
from astrai_cli.errors import AstraiError
from backends.base import SequenceStep

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

    history holds the n_known tokens there are so far, prompt first; the keys and
    values of the first n_computed are in the cache. It has room for n_tokens_max.
    """

    def __init__(self, prompt: Sequence[int], n_tokens_max: int, sink: Sink) -> None:
        self.id = next(_task_ids)
        self.n_prompt = len(prompt)
        self.history: NDArray[np.int32] = np.empty(n_tokens_max, dtype=np.int32)
        self.history[: self.n_prompt] = prompt
        self.n_known = self.n_prompt
        self.n_computed = 0
        self.state = TaskState.WAITING
        self.cancel_requested = False
        self._sink = sink
        self._pages: NDArray[np.int32] = np.empty(0, dtype=np.int32)
        self._reason: FinishReason | None = None
        self._error: AstraiError | None = None

    @property
    def n_tokens_max(self) -> int:
        return len(self.history)

    @property
    def n_pending(self) -> int:
        """Known tokens that have not been run yet."""
        return self.n_known - self.n_computed

    def start(self, view: KVCacheView, n_cached: int) -> None:
        """Leave the queue, with cells whose first n_cached positions are computed."""
        self._pages = view.pages
        self.n_computed = n_cached
        self.state = TaskState.PREFILLING

    def share(self, n: int) -> SequenceStep:
        """The next n pending tokens, as this task's share of a step."""
        start = self.n_computed
        return SequenceStep(
            self.history[start : start + n], start, self._pages, self._logit_rows(n)
        )

    def advance(self, n: int, logits: NDArray[np.float32]) -> None:
        """Take note that n tokens were run and gave these logits [asked for, vocabulary].

        Raises whatever the sink does, and ExecutionError where the logits are unusable.
        """
        self.n_computed += n
        if len(logits):
            self._accept(logits)

    def end(self, reason: FinishReason, error: AstraiError | None = None) -> None:
        """Finish; what ended a task first is what counts."""
        if self.state is not TaskState.FINISHED:
            self.state = TaskState.FINISHED
            self._reason, self._error = reason, error

    def finish(self) -> Finish:
        """The end of a finished task, for its sink."""
        assert self._reason is not None
        return Finish(
            self._reason,
            Usage(self.n_prompt, self.n_known - self.n_prompt),
            error=str(self._error) if self._error else None,
            error_code=self._error.code if self._error else None,
        )

    def deliver(self) -> None:
        """Send the sink its Finish."""
        self._sink(self.finish())

    @abstractmethod
    def _logit_rows(self, n: int) -> int:
        """How many of the next n tokens' logits this task wants, the last ones."""

    @abstractmethod
    def _accept(self, logits: NDArray[np.float32]) -> None:
        """Use the logits that were wanted."""


class GenerationTask(Task):
    """Continues a prompt, one drawn token at a time."""

    def __init__(
        self,
        request: GenerationRequest,
        n_tokens_max: int,
        end_ids: Collection[int],
        token_bytes: TokenBytes,
        sink: Sink,
    ) -> None:
        """Raises InvalidInputError for sampling parameters or stops out of bounds."""
        super().__init__(request.prompt, n_tokens_max, sink)
        seed = request.sampling.seed
        self._pipeline = SamplingPipeline.from_params(
            request.sampling, secrets.randbelow(MAX_SEED) if seed is None else seed
        )
        self._end_ids = frozenset(request.stop_token_ids)
        if not request.ignore_eos:
            self._end_ids |= frozenset(end_ids)
        self._detokenizer = Detokenizer(token_bytes)
        self._stops = StopMatcher(request.stop)

    def finish(self) -> Finish:
        return dataclasses.replace(super().finish(), matched_stop=self._stops.matched)

    def deliver(self) -> None:
        """Send what text is still held back, then the Finish."""
        rest = self._stops.feed(self._detokenizer.flush()) + self._stops.flush()
        if rest:
            self._sink(Piece(rest, ()))
        super().deliver()

    def _logit_rows(self, n: int) -> int:
        return int(n == self.n_pending)

    def _accept(self, logits: NDArray[np.float32]) -> None:
        token_id = self._pipeline.sample(logits[-1], self.n_known - self.n_prompt)
        self.history[self.n_known] = token_id
        self.n_known += 1
        self.state = TaskState.DECODING
        if token_id in self._end_ids:
            text = ""
            self.end("stop")
        else:
            text = self._stops.feed(self._detokenizer.feed(token_id))
            if self._stops.matched is not None:
                self.end("stop")
            elif self.n_known == self.n_tokens_max:
                self.end("length")
        self._sink(Piece(text, (token_id,)))


class ScoringTask(Task):
    """Runs a sequence and keeps all its logits: float32 [tokens, vocabulary]."""

    def __init__(self, token_ids: Sequence[int], vocab_size: int, sink: Sink) -> None:
        super().__init__(token_ids, len(token_ids), sink)
        self.logits: NDArray[np.float32] = np.empty((len(token_ids), vocab_size), np.float32)

    def _logit_rows(self, n: int) -> int:
        return n

    def _accept(self, logits: NDArray[np.float32]) -> None:
        self.logits[self.n_computed - len(logits) : self.n_computed] = logits
        if not self.n_pending:
            self.end("length")
