"""Cells in pages, given as tasks grow; equal prefixes share theirs."""

from __future__ import annotations

from collections.abc import Sequence

from astrai_cli.engine.cache.base import Identity, KVCache, KVCacheView
from astrai_cli.engine.cache.pool import PagePool
from astrai_cli.engine.cache.prefix import ROOT
from astrai_cli.engine.cache.snapshots import PrefixSnapshots
from astrai_cli.engine.cache.storage import Storage
from astrai_cli.engine.cache.table import PageTable, TaskTable


class PageCacheView(KVCacheView):
    """The pages of one task's table."""


class PageCache(KVCache):
    """A paged cache whose full pages are shared by reference.

    A task gets pages as it grows. Those for the positions it starts with are promised
    then, so that only generated tokens can find the pool empty. A full page is
    published once it is computed: tasks whose identity is the same so far take it
    over, at their start or whenever they stand before it. A page that is not full
    has one holder, who writes it.
    """

    def __init__(
        self,
        storage: Storage,
        *,
        n_snapshots: int = 0,
        n_capture_slots: int = 0,
        key_bits: int = 64,
    ) -> None:
        self.page_size = storage.page_size
        self.n_cells = self.capacity = storage.n_cells
        self._storage = storage
        self._pool = PagePool(storage.n_pages, storage.page_size, key_bits)
        self._tasks = TaskTable()
        self._snapshots = PrefixSnapshots(self._pool, n_snapshots, n_capture_slots)
        self._n_promised = 0

    @property
    def cells_used(self) -> int:
        return self._pool.n_used * self.page_size

    @property
    def cells_cached(self) -> int:
        return self._pool.n_cached * self.page_size

    def allocate_task(
        self, task_id: int, identity: Identity, n_reusable: int, n_positions: int, spare: int
    ) -> int | None:
        keys: list[int] = []
        self._pool.extend_keys(keys, identity, len(identity) // self.page_size)
        matched = self._pool.match(identity, keys[: n_reusable // self.page_size])
        n_needed = self._storage.pages_for(n_positions) - len(matched)
        if n_needed + self._pool.n_unheld(matched) + spare > self._n_unpromised:
            return None
        self._pool.acquire(matched)
        table = PageTable(keys, len(identity))
        table.extend(matched)
        table.n_published = len(matched)
        table.n_cached = len(matched) * self.page_size
        self._promise(table, n_needed)
        self._tasks[task_id] = table
        self._snapshots.begin(task_id, matched)
        return table.n_cached

    def take_over(self, task_id: int, former_id: int, n_positions: int, spare: int) -> bool:
        table = self._tasks[former_id]
        n_needed = max(0, self._storage.pages_for(n_positions) - len(table) - table.n_promised)
        if n_needed + spare > self._n_unpromised:
            return False
        self._promise(table, n_needed)
        self._tasks[task_id] = self._tasks.pop(former_id)
        return True

    def catch_up(self, task_id: int, identity: Identity, n_reusable: int) -> int:
        table = self._tasks[task_id]
        done = table.n_published
        # Only between two pages, and before it has a page of its own to write the next to.
        if table.n_cached != done * self.page_size or len(table) != done or not table.is_open:
            return 0
        n_pages = n_reusable // self.page_size
        self._pool.extend_keys(table.keys, identity, n_pages)
        parent = table[done - 1] if done else ROOT
        pages = self._pool.match(identity, table.keys[:n_pages], done, parent)
        self._pool.acquire(pages)
        table.extend(pages)
        table.n_published += len(pages)
        table.n_cached += len(pages) * self.page_size
        self._promise(table, -min(len(pages), table.n_promised))
        return len(pages) * self.page_size

    def shared_keys(self, task_id: int, identity: Identity, n: int) -> Sequence[int]:
        table = self._tasks[task_id]
        first = table.n_cached // self.page_size
        # A page that these positions only begin is the task's to finish.
        last = min(self._storage.pages_for(table.n_cached + n), len(identity) // self.page_size)
        self._pool.extend_keys(table.keys, identity, last)
        return table.keys[first:last]

    def grow(self, task_id: int, n_positions: int) -> bool:
        table = self._tasks[task_id]
        for _ in range(self._storage.pages_for(n_positions) - len(table)):
            if table.n_promised:
                self._promise(table, -1)
            elif not self._n_unpromised:
                return False
            table.extend([self._pool.allocate()])
        return True

    def shrink(self, task_id: int, n_positions: int) -> None:
        self._pool.release(self._tasks[task_id].cut(self._storage.pages_for(n_positions)))

    def record(self, task_id: int, identity: Identity, n_computed: int) -> None:
        table = self._tasks[task_id]
        table.n_cached = n_computed
        n_full = n_computed // self.page_size
        if n_full > table.n_published and table.is_open:
            self._publish(table, identity, n_full)
        if self._snapshots.is_capturing(task_id) and n_computed >= table.n_prompt:
            n_pages = min(table.n_published, table.n_prompt // self.page_size)
            self._snapshots.capture(task_id, table.pages[:n_pages].tolist())

    def view(self, task_id: int) -> PageCacheView:
        return PageCacheView(self._tasks[task_id].pages, self.page_size)

    def free(self, task_id: int) -> None:
        table = self._tasks.pop(task_id)
        self._promise(table, -table.n_promised)
        self._snapshots.abandon(task_id)
        self._pool.release(table.pages.tolist())

    @property
    def _n_unpromised(self) -> int:
        """Pages that can be allocated without breaking a promise."""
        return self._pool.n_available - self._n_promised

    def _promise(self, table: PageTable, n_more: int) -> None:
        table.n_promised += n_more
        self._n_promised += n_more

    def _publish(self, table: PageTable, identity: Identity, n_full: int) -> None:
        """Make the computed pages before number n_full known, as far as that goes."""
        self._pool.extend_keys(table.keys, identity, n_full)
        for index in range(table.n_published, n_full):
            parent = table[index - 1] if index else ROOT
            page = self._pool.publish(table[index], identity, index, table.keys[index], parent)
            if page is None:
                table.is_open = False
                return
            table[index] = page
            table.n_published += 1
