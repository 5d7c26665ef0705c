"""Continuous batching: one thread, one packed step after another.

Each turn has four phases. *Clean up* frees finished and cancelled tasks and tells
them; *refill* moves waiting tasks to free places, first come first served;
*prefill* and *decode* choose the tokens of the next step: one of every answering
task, and of the prompts, in order of arrival, as many as fit one chunk. So no
answer ever waits longer than one chunk, and tasks join and leave between steps.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Any

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.cache import ContiguousCache, KVCache
from astrai_cli.engine.stats import EngineStats
from astrai_cli.engine.task import Task, TaskState
from astrai_cli.errors import (
    AstraiError,
    EngineUnavailableError,
    ExecutionError,
    OverloadedError,
    RequestCancelledError,
)
from backends.base import Executor, Step

logger = logging.getLogger(__name__)

Share = tuple[Task, int]
"""A task and how many of its pending tokens go into the step."""

# A step in progress cannot be interrupted; shutdown waits at most this long for it.
_STEP_GRACE_SECONDS = 60.0


class InferenceScheduler:
    """Runs tasks on an executor, in a daemon thread of its own.

    Every task that submit accepts gets exactly one Finish, whatever happens.
    """

    def __init__(
        self, executor: Executor, limits: LimitsConfig, cache: KVCache | None = None
    ) -> None:
        """Raises InvalidInputError where the executor cannot hold the cache's cells."""
        info = executor.info
        self._executor = executor
        self._max_inflight = limits.max_inflight_requests
        self._max_chunk = limits.max_prefill_chunk
        self._max_step_tokens = info.max_step_tokens
        # Every answering task has a token in every step, and a prompt at least one.
        self._max_sequences = min(limits.max_decode_sequences, info.max_step_tokens)
        self._cache = cache or ContiguousCache(self._max_sequences, info.max_context)
        executor.allocate(self._cache.n_cells)
        self._stats = EngineStats()

        # Written under this one lock; _active by the engine thread alone, which may read it freely.
        lock = threading.Lock()
        self._wake = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._active: list[Task] = []
        self._waiting: deque[Task] = deque()
        self._n_inflight = 0
        self._cancel_requested = False
        self._closing = False

        self._thread = threading.Thread(target=self._run, name="astrai-engine", daemon=True)
        self._thread.start()

    def submit(self, task: Task, *, wait: bool = False) -> None:
        """Put a task into the queue; with `wait`, first wait until there is room for it.

        Raises OverloadedError where the limit of requests is reached, and
        EngineUnavailableError where the engine is stopping or has died.
        """
        with self._room:
            while not self._closing and self._n_inflight >= self._max_inflight and wait:
                self._room.wait()
            if self._closing:
                raise EngineUnavailableError("the engine takes no more requests: it is stopping")
            if self._n_inflight >= self._max_inflight:
                raise OverloadedError(
                    f"{self._n_inflight} requests are in flight, of at most {self._max_inflight}"
                )
            self._n_inflight += 1
            self._waiting.append(task)
            self._wake.notify()

    def cancel(self, task: Task) -> None:
        """End a task before its next step; one that has finished stays as it is."""
        with self._wake:
            task.cancel_requested = True
            self._cancel_requested = True

    def shutdown(self, timeout: float) -> None:
        """Take no more tasks, give the ones there are `timeout` seconds, cancel the rest.

        Raises EngineUnavailableError where a step does not return even then.
        """
        with self._room:
            self._closing = True
            self._wake.notify_all()
            self._room.notify_all()
            self._room.wait_for(lambda: not self._n_inflight, timeout)
            for task in (*self._active, *self._waiting):
                task.cancel_requested = True
            self._cancel_requested = True
        self._thread.join(_STEP_GRACE_SECONDS)
        if self._thread.is_alive():
            raise EngineUnavailableError(
                f"the running step did not return within {_STEP_GRACE_SECONDS:.0f} seconds"
            )

    def get_stats(self) -> dict[str, Any]:
        """The counters of EngineStats, and what is in the queue and in the cells now."""
        return {
            "alive": self._thread.is_alive(),
            "queue": len(self._waiting),
            "active": len(self._active),
            "cells_used": self._cache.cells_used,
            "cells_total": self._cache.n_cells,
            **self._stats.as_dict(),
        }

    def _run(self) -> None:
        try:
            while self._wait_for_work():
                self._clean_up()
                self._refill()
                shares = self._decode()
                shares += self._prefill(len(shares))
                if shares:
                    self._step(shares)
        except Exception:
            logger.exception("the scheduler failed")
        finally:
            self._abandon()

    def _wait_for_work(self) -> bool:
        """Sleep until there are tasks; False when there will never be any more."""
        with self._wake:
            while not (self._active or self._waiting or self._closing):
                self._wake.wait()
            return bool(self._active or self._waiting)

    def _clean_up(self) -> None:
        """Free what finished and cancelled tasks hold, then tell them."""
        with self._room:
            finished = self._end_cancelled() if self._cancel_requested else []
            for task in self._active:
                if task.state is TaskState.FINISHED:
                    self._cache.free(task.id)
                    finished.append(task)
            if not finished:
                return
            self._active = [task for task in self._active if task.state is not TaskState.FINISHED]
            self._n_inflight -= len(finished)
            self._room.notify_all()
        for task in finished:
            self._deliver(task)

    def _end_cancelled(self) -> list[Task]:
        """End all tasks that are to be cancelled; returns those that were still waiting."""
        self._cancel_requested = False
        for task in (*self._active, *self._waiting):
            if task.cancel_requested:
                why = "the engine is stopping" if self._closing else "cancelled by its client"
                task.end("cancelled", RequestCancelledError(why))
        ended = [task for task in self._waiting if task.state is TaskState.FINISHED]
        if ended:
            kept = [task for task in self._waiting if task.state is not TaskState.FINISHED]
            self._waiting = deque(kept)
        return ended

    def _refill(self) -> None:
        """Start waiting tasks in order; the first that finds no room keeps all others waiting."""
        with self._wake:
            while self._waiting and len(self._active) < self._max_sequences:
                task = self._waiting[0]
                prompt = task.history[: task.n_prompt]
                n_cached = self._cache.allocate_task(task.id, prompt, task.n_tokens_max)
                if n_cached is None:
                    return
                task.start(self._cache.view(task.id), n_cached)
                self._active.append(self._waiting.popleft())

    def _decode(self) -> list[Share]:
        """One token of every answering task."""
        return [(task, 1) for task in self._active if task.state is TaskState.DECODING]

    def _prefill(self, n_decoding: int) -> list[Share]:
        """The next tokens of the prompts, oldest first; one chunk of them beside answers."""
        room = self._max_step_tokens - n_decoding
        if n_decoding:
            room = min(room, self._max_chunk)
        shares: list[Share] = []
        for task in self._active:
            if room and task.state is TaskState.PREFILLING:
                n = min(room, task.n_pending)
                shares.append((task, n))
                room -= n
        return shares

    def _step(self, shares: list[Share]) -> None:
        """Run one packed step; a failure ends the tasks in it and no others."""
        sequences = [task.share(n) for task, n in shares]
        n_decoded = sum(task.state is TaskState.DECODING for task, _ in shares)
        step = Step(sequences, self._cache.page_size)
        started = time.perf_counter()
        try:
            logits = self._executor.step(step).logits
        except Exception as error:
            logger.exception("a step of %d sequences failed", len(shares))
            for task, _ in shares:
                task.end("error", _as_execution_error(error))
            return
        seconds = time.perf_counter() - started
        self._stats.record_step(seconds, step.n_tokens - n_decoded, n_decoded)
        row = 0
        for (task, n), sequence in zip(shares, sequences, strict=True):
            rows = logits[row : row + sequence.logit_rows]
            row += sequence.logit_rows
            try:
                task.advance(n, rows)
            except Exception as error:
                logger.exception("task %d failed", task.id)
                task.end("error", _as_execution_error(error))

    def _deliver(self, task: Task) -> None:
        """Send a task's Finish; a sink that raises is its own loss."""
        try:
            self._stats.record_finish(task.finish().reason)
            task.deliver()
        except Exception:
            logger.exception("the sink of task %d failed", task.id)

    def _abandon(self) -> None:
        """The thread ends: whatever tasks are left end with an error."""
        with self._room:
            self._closing = True
            left = [*self._active, *self._waiting]
            self._active, self._waiting = [], deque()
            self._n_inflight = 0
            self._room.notify_all()
        for task in left:
            task.end("error", EngineUnavailableError("the engine has died"))
            self._deliver(task)


def _as_execution_error(error: Exception) -> AstraiError:
    if isinstance(error, ExecutionError):
        return error
    return ExecutionError(f"the step failed: {type(error).__name__}: {error}")
