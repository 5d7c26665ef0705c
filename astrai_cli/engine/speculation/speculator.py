"""Puts drafts into steps."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass

from astrai_cli.engine.batch import Share
from astrai_cli.engine.cache import KVCache
from astrai_cli.engine.speculation.policy import DraftPolicy, Offer
from astrai_cli.engine.speculation.proposer import NOTHING, Proposal, Proposer
from astrai_cli.engine.stats import EngineStats
from astrai_cli.engine.task import Task, TaskState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class _Draft:
    """A task's draft in the running step. n_known: the task's before it."""

    task: Task
    offer: Offer
    n_known: int

    @property
    def n_accepted(self) -> int:
        """Once the step is done: all but the last of the new tokens were guessed."""
        return max(0, self.task.n_known - self.n_known - 1)


class Speculator:
    """Extends the shares of answering tasks by drafts, and learns what became of them."""

    def __init__(
        self,
        proposer: Proposer,
        policy: DraftPolicy,
        cache: KVCache,
        max_step_tokens: int,
        stats: EngineStats,
    ) -> None:
        self._proposer = proposer
        self._cache = cache
        self._max_step_tokens = max_step_tokens
        self._stats = stats
        self._policy = policy
        self._answering: list[int] = []
        self._drafts: list[_Draft] = []
        self._n_rows = 0

    def extend(self, shares: Sequence[Share]) -> list[Share]:
        """The shares of a step, with drafts where they pay and there are cells for them."""
        answering = [task for task, _ in shares if task.state is TaskState.DECODING]
        self._answering = [task.id for task in answering]
        self._n_rows = sum(n for _, n in shares)
        self._drafts = []
        candidates = [task for task in answering if task.n_draft_max]
        room = self._max_step_tokens - self._n_rows
        if candidates and room:
            self._drafts = self._draft(candidates, room)
        lengths = {draft.task.id: draft.offer.n for draft in self._drafts}
        return [(task, n + lengths.get(task.id, 0)) for task, n in shares]

    def record(self, seconds: float) -> None:
        """The step of the last shares is done, and its tasks know their new tokens."""
        for draft in self._drafts:
            self._cache.shrink(draft.task.id, draft.task.n_known)
            self._stats.record_draft(draft.offer.n, draft.n_accepted)
        drafts = [(draft.offer, draft.n_accepted) for draft in self._drafts]
        self._policy.record(self._answering, drafts, self._n_rows, seconds)

    def forget(self, task_id: int) -> None:
        """The task has ended."""
        self._proposer.forget(task_id)
        self._policy.forget(task_id)

    def _draft(self, tasks: Sequence[Task], room: int) -> list[_Draft]:
        drafts: list[_Draft] = []
        try:
            proposals, counts = self._propose(tasks, room)
        except Exception:
            # Answers need no drafts.
            logger.exception("no draft could be made for %d answers", len(tasks))
            return drafts
        for task, proposal, n in zip(tasks, proposals, counts, strict=True):
            if not n:
                continue
            if self._cache.grow(task.id, task.n_known + n):
                task.draft(proposal.token_ids[:n])
                drafts.append(_Draft(task, Offer(task.id, n, proposal.confidence), task.n_known))
            else:
                self._cache.shrink(task.id, task.n_known)
        return drafts

    def _propose(self, tasks: Sequence[Task], room: int) -> tuple[list[Proposal], list[int]]:
        """A proposal for each task, and how many of its tokens to check."""
        most = [min(task.n_draft_max, self._proposer.max_tokens) for task in tasks]
        if self._proposer.is_free:
            proposals = self._proposer.propose(tasks, most)
            offers = [
                Offer(task.id, len(proposal.token_ids), proposal.confidence)
                for task, proposal in zip(tasks, proposals, strict=True)
            ]
            return proposals, self._policy.choose(offers, self._n_rows, room)
        offers = [Offer(task.id, n) for task, n in zip(tasks, most, strict=True)]
        counts = self._policy.choose(offers, self._n_rows, room)
        wanted = [(task, n) for task, n in zip(tasks, counts, strict=True) if n]
        if not wanted:
            return [NOTHING] * len(tasks), counts
        started = time.perf_counter()
        made = iter(self._proposer.propose(*zip(*wanted, strict=True)))
        self._policy.record_drafting(sum(counts), time.perf_counter() - started)
        return [next(made) if n else NOTHING for n in counts], counts
