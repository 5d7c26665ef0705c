"""The default cache: each task has one fixed slot, as long as the context."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.cache.base import KVCache, KVCacheView
from astrai_cli.errors import InvalidInputError


class ContiguousCacheView(KVCacheView):
    """One page that is the task's whole slot."""


class ContiguousCache(KVCache):
    """A slot a task: a page of `max_context` cells, never shared."""

    def __init__(self, n_slots: int, max_context: int) -> None:
        self.page_size = max_context
        self.n_cells = n_slots * max_context
        # Last in, first out: a slot used lately is warm in the processor's caches.
        self._free_slots = list(reversed(range(n_slots)))
        self._slots: dict[int, ContiguousCacheView] = {}

    @property
    def cells_used(self) -> int:
        return len(self._slots) * self.page_size

    def allocate_task(
        self, task_id: int, prompt: NDArray[np.int32], n_tokens_max: int
    ) -> int | None:
        if n_tokens_max > self.page_size:
            raise InvalidInputError(
                f"a task of {n_tokens_max} positions does not fit a slot of {self.page_size} cells"
            )
        if not self._free_slots:
            return None
        slot = np.array([self._free_slots.pop()], dtype=np.int32)
        self._slots[task_id] = ContiguousCacheView(slot, self.page_size)
        return 0

    def view(self, task_id: int) -> ContiguousCacheView:
        return self._slots[task_id]

    def free(self, task_id: int) -> None:
        self._free_slots.append(int(self._slots.pop(task_id).pages[0]))
