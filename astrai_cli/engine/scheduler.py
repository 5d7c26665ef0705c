"""Continuous batching: one thread, one packed step after another.

Each turn has four phases. *Clean up* frees finished and cancelled tasks and tells
them; *refill* moves waiting tasks to free places, first come first served;
*decode* and *prefill* choose the tokens of the next step: one of every answering
task, and of the prompts, in order of arrival, as many as fit a chunk, or a part of
one beside answers. So no answer waits longer than that, and tasks join and leave
between steps. Where there is a proposer, drafts fill what room is left in the step.
Steps of the same answering tasks may follow each other without a pause: see `steps`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from math import inf
from typing import Any

from astrai_cli.config import LimitsConfig
from astrai_cli.engine.batch import Batch
from astrai_cli.engine.cache import ContiguousCache, KVCache
from astrai_cli.engine.limits import EngineLimits
from astrai_cli.engine.sessions import Session, SessionTable, Turn
from astrai_cli.engine.speculation import AdaptiveDrafts, FullDrafts, Proposer, Speculator
from astrai_cli.engine.stats import EngineStats
from astrai_cli.engine.steps import SharedStep, StepRunner
from astrai_cli.engine.task import Task, TaskState
from astrai_cli.errors import (
    EngineUnavailableError,
    InvalidInputError,
    OverloadedError,
    RequestCancelledError,
)
from backends.base import Executor

logger = logging.getLogger(__name__)

# A step in progress cannot be interrupted; shutdown waits at most this long for it.
_STEP_GRACE_SECONDS = 60.0


class InferenceScheduler:
    """Runs tasks on an executor, in a daemon thread of its own.

    Every task that submit accepts gets exactly one Finish, whatever happens.
    """

    def __init__(
        self,
        executor: Executor,
        limits: LimitsConfig,
        cache: KVCache | None = None,
        on_evicted: Callable[[str], None] = lambda session_id: None,
        *,
        proposer: Proposer | None = None,
    ) -> None:
        """on_evicted: as in SessionTable. proposer: makes drafts; None for none.

        Raises InvalidInputError for limits that the executor cannot keep.
        """
        info = executor.info
        self._limits = EngineLimits.resolve(limits, info)
        self._cache = cache or ContiguousCache(self._limits.max_sequences, info.max_context)
        if self._cache.capacity < info.max_context:
            raise InvalidInputError(
                f"the cache has {self._cache.capacity} cells for one sequence, less than the "
                f"context of {info.max_context}",
                param="max_cells",
            )
        executor.allocate(self._cache.n_cells)
        self._stats = EngineStats()
        self._speculator: Speculator | None = None
        if proposer is not None:
            policy = AdaptiveDrafts() if limits.adaptive_drafts else FullDrafts()
            max_tokens = self._limits.max_step_tokens
            self._speculator = Speculator(proposer, policy, self._cache, max_tokens, self._stats)

        # Written under this one lock; the batch by the engine thread alone, so it reads freely.
        lock = threading.Lock()
        self._wake = threading.Condition(lock)
        self._room = threading.Condition(lock)
        self._sessions = SessionTable(
            self._limits.max_sessions, self._limits.evict_idle_sessions, on_evicted
        )
        self._batch = Batch(self._cache, self._limits, self._sessions, self._stats, lock)
        self._steps = StepRunner(executor, self._cache, self._stats)
        self._n_inflight = 0
        self._cancel_requested = False
        self._next_expiry = inf
        self._closing = False

        self._thread = threading.Thread(target=self._run, name="astrai-engine", daemon=True)
        self._thread.start()

    def submit(self, *tasks: Task, wait: bool = False) -> None:
        """Put tasks into the queue, all or none; with `wait`, first wait until there is room.

        Several tasks are of no session. Raises OverloadedError where the limit of
        requests or of sessions is reached, and EngineUnavailableError where the engine
        is stopping or has died.
        """
        with self._room:
            while wait and not self._closing and self._must_wait(tasks):
                self._room.wait()
            self._require_room(len(tasks))
            for task, session in zip(tasks, self._open_sessions(tasks), strict=True):
                task.session = session
                self._n_inflight += 1
                task.enqueue(self._limits.queue_timeout)
                self._next_expiry = min(self._next_expiry, task.expires_at)
                self._batch.waiting.add(task)
            self._wake.notify()

    def check_room(self, n: int) -> None:
        """Raises as submit does, where n more tasks would be refused now."""
        with self._room:
            self._require_room(n)

    def cancel(self, task: Task) -> None:
        """End a task before its next step; one that has finished stays as it is."""
        with self._wake:
            task.cancel_requested = True
            self._cancel_requested = True

    def turn(self, session_id: str) -> Turn | None:
        """The last turn of a session. Raises SessionNotFoundError."""
        with self._wake:
            return self._sessions.turn(session_id)

    def reset_session(self, session_id: str) -> None:
        """Forget a session's history. Raises SessionNotFoundError, SessionBusyError."""
        with self._wake:
            self._sessions.reset(session_id)
            self._wake.notify()

    def delete_session(self, session_id: str) -> None:
        """Raises SessionNotFoundError, SessionBusyError."""
        with self._room:
            self._sessions.delete(session_id)
            self._wake.notify()
            self._room.notify_all()

    def shutdown(self, timeout: float) -> None:
        """Take no more tasks, give the ones there are `timeout` seconds, cancel the rest.

        Raises EngineUnavailableError where a step does not return even then.
        """
        with self._room:
            self._closing = True
            self._wake.notify_all()
            self._room.notify_all()
            self._room.wait_for(lambda: not self._n_inflight, timeout)
            for task in (*self._batch.active, *self._batch.waiting):
                task.cancel_requested = True
            self._cancel_requested = True
        self._thread.join(_STEP_GRACE_SECONDS)
        if self._thread.is_alive():
            raise EngineUnavailableError(
                f"the running step did not return within {_STEP_GRACE_SECONDS:.0f} seconds"
            )

    def get_stats(self) -> dict[str, Any]:
        """The counters of EngineStats, and what is in the queue and in the cells now."""
        active = tuple(self._batch.active)
        n_decoding = sum(task.state is TaskState.DECODING for task in active)
        return {
            "alive": self._thread.is_alive(),
            "queue": len(self._batch.waiting),
            "active": len(active),
            "prefilling": len(active) - n_decoding,
            "decoding": n_decoding,
            "sessions": self._sessions.n_named,
            "cells_used": self._cache.cells_used,
            "cells_cached": self._cache.cells_cached,
            "cells_total": self._cache.n_cells,
            **self._stats.as_dict(),
        }

    def _require_room(self, n: int) -> None:
        if self._closing:
            raise EngineUnavailableError("the engine takes no more requests: it is stopping")
        if self._n_inflight + n > self._limits.max_requests:
            raise OverloadedError(
                f"{self._n_inflight} requests are in flight, "
                f"of at most {self._limits.max_requests}; {n} more do not fit",
                retry_after=self._stats.seconds_to_a_finish(len(self._batch.active)),
            )

    def _must_wait(self, tasks: Sequence[Task]) -> bool:
        """Whether requests that end may make room that the tasks do not find now."""
        if not self._n_inflight:
            return False
        return self._n_inflight + len(tasks) > self._limits.max_requests or (
            not self._sessions.has_slots(tasks[0].session_id, len(tasks))
        )

    def _open_sessions(self, tasks: Sequence[Task]) -> list[Session]:
        session_id = tasks[0].session_id
        if session_id is None:
            return self._sessions.open_anonymous(len(tasks))
        return [self._sessions.open(session_id)]

    def _run(self) -> None:
        try:
            step: SharedStep | None = None
            while step is not None or self._wait_for_work():
                self._clean_up()
                step = self._turn(step)
        except Exception:
            logger.exception("the scheduler failed")
        finally:
            self._abandon()

    def _turn(self, step: SharedStep | None) -> SharedStep | None:
        """Bring a step to its end, a new one where none is under way; the next, if it is."""
        step = step or self._begin_step()
        if step is None:
            return None
        following = self._steps.begin_next(step) if self._may_go_on(step) else None
        seconds = self._steps.finish(step)
        if self._speculator is not None and seconds is not None:
            self._speculator.record(seconds)
        return following

    def _begin_step(self) -> SharedStep | None:
        """Choose the tasks of a step and begin it."""
        self._batch.refill()
        shares = self._batch.decode()
        shares += self._batch.prefill(len(shares))
        if self._speculator is not None:
            shares = self._speculator.extend(shares)
        return self._steps.begin(shares) if shares else None

    def _may_go_on(self, step: SharedStep) -> bool:
        """Whether the next step is for these tasks alone, whatever this one gives."""
        return (
            self._speculator is None
            and not self._cancel_requested
            and not self._batch.may_start
            and step.n_active == len(self._batch.active)
        )

    def _wait_for_work(self) -> bool:
        """Sleep until there is something to do; False when there will never be any more."""
        with self._wake:
            while not (self._has_work() or self._closing):
                self._wake.wait()
            return self._has_work()

    def _has_work(self) -> bool:
        return bool(self._batch.active or self._batch.waiting or self._sessions.has_dropped)

    def _clean_up(self) -> None:
        """Free what finished and unwanted tasks hold, then tell them."""
        with self._room:
            for owner in self._sessions.take_dropped():
                self._cache.free(owner)
            finished: list[Task] = []
            now = time.monotonic()
            if self._cancel_requested or now >= self._next_expiry:
                self._end_unwanted(now)
                finished += self._batch.waiting.take_finished()
            finished += self._batch.take_finished()
            if not finished:
                return
            for task in finished:
                self._leave_session(task)
                if self._speculator is not None:
                    self._speculator.forget(task.id)
            self._n_inflight -= len(finished)
            self._room.notify_all()
        for task in finished:
            self._deliver(task)

    def _end_unwanted(self, now: float) -> None:
        """End all tasks that are to be cancelled or are out of time."""
        self._cancel_requested = False
        self._next_expiry = inf
        for task in (*self._batch.active, *self._batch.waiting):
            if task.cancel_requested:
                why = "the engine is stopping" if self._closing else "cancelled by its client"
                task.end("cancelled", RequestCancelledError(why))
            elif task.expires_at <= now:
                task.expire(self._stats.seconds_to_a_finish(len(self._batch.active)))
            else:
                self._next_expiry = min(self._next_expiry, task.expires_at)

    def _leave_session(self, task: Task) -> None:
        session = task.session
        if session.runner == task.id:
            session.runner = None
        session.is_confirmed |= task.n_known > task.n_prompt
        self._sessions.close(session)

    def _deliver(self, task: Task) -> None:
        """Send a task's Finish; a sink that raises is its own loss."""
        try:
            self._stats.record_finish(task.finish().reason, task.seconds_run)
            task.deliver()
        except Exception:
            logger.exception("the sink of task %d failed", task.id)

    def _abandon(self) -> None:
        """The thread ends: whatever tasks are left end with an error."""
        with self._room:
            self._closing = True
            left = [*self._batch.active, *self._batch.waiting.take_all()]
            self._batch.active = []
            self._n_inflight = 0
            self._room.notify_all()
        for task in left:
            task.end("error", EngineUnavailableError("the engine has died"))
            self._deliver(task)
