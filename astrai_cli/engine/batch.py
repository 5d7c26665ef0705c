"""The tasks that run together: who joins them, what of each runs next, who gives way.

When a task that answers finds no cell for its next token, idle sessions lose
theirs, then the youngest task is preempted: it goes back to its place in the queue
with all tokens it has, and computes them again when it has room for them. The
oldest task is never preempted for another and fits the cache alone, so it always
ends, and then the next is the oldest.
"""

from __future__ import annotations

from bisect import insort
from threading import Lock

from astrai_cli.engine.cache import KVCache
from astrai_cli.engine.limits import EngineLimits
from astrai_cli.engine.sessions import SessionTable
from astrai_cli.engine.stats import EngineStats
from astrai_cli.engine.task import Task, TaskState
from astrai_cli.engine.waiting import WaitingQueue

Share = tuple[Task, int]
"""A task and how many of its pending tokens go into the step."""


class Batch:
    """The active tasks, with the cells they hold, and the queue they come from.

    Used by the engine thread alone, but for `waiting` and `sessions`: they, and the
    list `active` where it is changed, are guarded by the lock.
    """

    def __init__(
        self,
        cache: KVCache,
        limits: EngineLimits,
        sessions: SessionTable,
        stats: EngineStats,
        lock: Lock,
    ) -> None:
        self.active: list[Task] = []  # in order of arrival
        self.waiting = WaitingQueue()
        self._cache = cache
        self._limits = limits
        self._sessions = sessions
        self._stats = stats
        self._lock = lock

    @property
    def may_start(self) -> bool:
        """Whether a waiting task may find a place."""
        return len(self.waiting) > 0 and len(self.active) < self._limits.max_sequences

    def take_finished(self) -> list[Task]:
        """Remove the finished tasks, and their cells. The lock is held."""
        finished = [task for task in self.active if task.state is TaskState.FINISHED]
        for task in finished:
            self._release_cells(task)
        if finished:
            self.active = [task for task in self.active if task.state is not TaskState.FINISHED]
        return finished

    def refill(self) -> None:
        """Start waiting tasks in order; the first that finds no room keeps all others waiting.

        One whose session is busy lets others pass: it waits for a place in its session.
        """
        if not self.may_start:
            return
        with self._lock:
            for task in tuple(self.waiting):
                if len(self.active) == self._limits.max_sequences:
                    return
                if not task.session.is_free_for(task.id):
                    continue
                n_cached = self._allocate(task)
                if n_cached is None:
                    return
                self._stats.record_reuse(n_cached)
                task.session.runner = task.id
                task.start(n_cached)
                self.waiting.remove(task)
                insort(self.active, task, key=lambda each: each.id)

    def decode(self) -> list[Share]:
        """One token of every answering task."""
        return [
            (task, 1)
            for task in tuple(self.active)
            # Looked at one by one: an older task may just have preempted this one.
            if task.state is TaskState.DECODING and self._has_cells(task, task.n_known)
        ]

    def prefill(self, n_decoding: int) -> list[Share]:
        """The next tokens of the prompts, oldest first.

        What several prompts have in common is computed by the oldest of them: the
        others wait for it, and take it over.
        """
        room = self._limits.prefill_room(n_decoding)
        shares: list[Share] = []
        being_computed: set[int] = set()
        for task in tuple(self.active):
            if not room:
                break
            if task.state is not TaskState.PREFILLING:
                continue
            n_taken = self._cache.catch_up(task.id, task.identity, task.n_reusable)
            self._stats.record_reuse(n_taken)
            task.skip(n_taken)
            n = min(room, task.n_pending)
            keys = self._cache.shared_keys(task.id, task.identity, n)
            if keys and keys[0] in being_computed:
                continue
            if self._has_cells(task, task.n_computed + n):
                being_computed.update(keys)
                shares.append((task, n))
                room -= n
        return shares

    def _release_cells(self, task: Task) -> None:
        """Leave a finished task's cells to its session where that can go on from them."""
        session = task.session
        session.turn = None if session.id is None else task.turn()
        if session.turn is None:
            self._cache.free(task.id)
        else:
            session.owner, session.n_computed = task.id, task.n_computed

    def _allocate(self, task: Task) -> int | None:
        """Promise a task cells, of idle sessions where there are no others.

        Returns how many of its positions are computed; None where there is no room.
        """
        session = task.session
        goes_on = session.is_continued_by(task.identity)
        if not goes_on and session.owner is not None:
            self._cache.free(session.owner)
            session.owner = None
        while (n_cached := self._try_to_allocate(task, goes_on)) is None:
            owner = self._sessions.release_cells(besides=session)
            if owner is None:
                return None
            self._cache.free(owner)
        session.turn = None
        return n_cached

    def _try_to_allocate(self, task: Task, goes_on: bool) -> int | None:
        session = task.session
        n_positions = min(task.n_known + 1, task.n_tokens_max)
        # Each running task that may need another page can have one, so that this one is not
        # soon preempted.
        spare = sum(self._may_need_a_page(each) for each in self.active)
        if not goes_on:
            return self._cache.allocate_task(
                task.id, task.identity, task.n_reusable, n_positions, spare
            )
        assert session.owner is not None
        if not self._cache.take_over(task.id, session.owner, n_positions, spare):
            return None
        session.owner = None
        return session.n_computed

    def _may_need_a_page(self, task: Task) -> bool:
        """Whether the task can outgrow the pages of the tokens it has."""
        page_size = self._cache.page_size
        return task.n_tokens_max > -(-task.n_known // page_size) * page_size

    def _has_cells(self, task: Task, n_positions: int) -> bool:
        """Whether the task has cells for that much, once others have given up theirs."""
        while not self._cache.grow(task.id, n_positions):
            with self._lock:
                owner = self._sessions.release_cells()
            if owner is not None:
                self._cache.free(owner)
                continue
            youngest = self.active[-1]
            self._preempt(youngest)
            if youngest is task:
                return False
        return True

    def _preempt(self, task: Task) -> None:
        """Send a task back to the queue; it keeps its tokens and loses its cells."""
        with self._lock:
            self.active.remove(task)
            self.waiting.add(task)
        self._cache.free(task.id)
        task.preempt()
        self._stats.record_preemption()
