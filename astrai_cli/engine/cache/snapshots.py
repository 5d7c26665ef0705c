"""Prefixes that stay in the cache although no task uses them."""

from __future__ import annotations

from collections.abc import Sequence

from astrai_cli.engine.cache.pool import PagePool


class PrefixSnapshots:
    """Holds the pages of the prompts used lately, by reference.

    A prompt that starts while a capture slot is free becomes a snapshot once it is
    computed. A snapshot that another goes on from gives way to it; beyond n_entries
    the one not used for longest goes.
    """

    def __init__(self, pool: PagePool, n_entries: int, n_capture_slots: int) -> None:
        self._pool = pool
        self._n_entries = n_entries
        self._n_capture_slots = n_capture_slots
        self._capturing: set[int] = set()
        self._entries: list[list[int]] = []  # used last, last

    def __len__(self) -> int:
        return len(self._entries)

    def begin(self, task_id: int, pages: Sequence[int]) -> None:
        """A prompt starts, with these pages computed already."""
        for entry in [entry for entry in self._entries if entry[-1] in pages]:
            self._entries.remove(entry)
            self._entries.append(entry)
        if len(self._capturing) < self._n_capture_slots:
            self._capturing.add(task_id)

    def is_capturing(self, task_id: int) -> bool:
        return task_id in self._capturing

    def capture(self, task_id: int, pages: Sequence[int]) -> None:
        """The prompt is computed; these published pages, in their order, are its own."""
        self._capturing.discard(task_id)
        if not pages or any(entry[: len(pages)] == [*pages] for entry in self._entries):
            return
        self._pool.acquire(pages)
        for entry in [entry for entry in self._entries if entry == [*pages[: len(entry)]]]:
            self._drop(entry)
        self._entries.append([*pages])
        if len(self._entries) > self._n_entries:
            self._drop(self._entries[0])

    def abandon(self, task_id: int) -> None:
        """The task ends; a snapshot of it that was not made yet will not be."""
        self._capturing.discard(task_id)

    def _drop(self, entry: list[int]) -> None:
        self._entries.remove(entry)
        self._pool.release(entry)
