"""Each task has one fixed slot, as long as the context; nothing is shared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrai_cli.engine.cache.base import Identity, KVCache, KVCacheView


class ContiguousCacheView(KVCacheView):
    """One page that is the task's whole slot."""


class ContiguousCache(KVCache):
    """A slot a task: a page of `max_context` cells."""

    def __init__(self, n_slots: int, max_context: int) -> None:
        self.page_size = self.capacity = max_context
        self.n_cells = n_slots * max_context
        # Last in, first out: a slot used lately is warm in the processor's caches.
        self._free_slots = list(reversed(range(n_slots)))
        self._slots: dict[int, ContiguousCacheView] = {}

    @property
    def cells_used(self) -> int:
        return len(self._slots) * self.page_size

    @property
    def cells_cached(self) -> int:
        return 0

    def allocate_task(
        self, task_id: int, identity: Identity, n_reusable: int, n_positions: int, spare: int
    ) -> int | None:
        if not self._free_slots:
            return None
        slot = np.array([self._free_slots.pop()], dtype=np.int32)
        self._slots[task_id] = ContiguousCacheView(slot, self.page_size)
        return 0

    def take_over(self, task_id: int, former_id: int, n_positions: int, spare: int) -> bool:
        self._slots[task_id] = self._slots.pop(former_id)
        return True

    def catch_up(self, task_id: int, identity: Identity, n_reusable: int) -> int:
        return 0

    def shared_keys(self, task_id: int, identity: Identity, n: int) -> Sequence[int]:
        return ()

    def grow(self, task_id: int, n_positions: int) -> bool:
        return n_positions <= self.page_size

    def shrink(self, task_id: int, n_positions: int) -> None:
        """A slot has one size."""

    def record(self, task_id: int, identity: Identity, n_computed: int) -> None:
        """Nothing to note: no other task will ask."""

    def view(self, task_id: int) -> ContiguousCacheView:
        return self._slots[task_id]

    def free(self, task_id: int) -> None:
        self._free_slots.append(int(self._slots.pop(task_id).pages[0]))
