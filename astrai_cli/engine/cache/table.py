"""The page tables of tasks."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_FIRST_ROOM = 16


class PageTable:
    """One task's pages in order.

    n_cached: positions computed. n_promised: pages the task may still have for sure.
    n_published: leading pages that others can match; is_open: more can follow.
    keys: PrefixCache's, of the first pages. n_prompt: positions known at the start.
    """

    def __init__(self, keys: list[int], n_prompt: int) -> None:
        self.keys = keys
        self.n_prompt = n_prompt
        self.n_cached = 0
        self.n_promised = 0
        self.n_published = 0
        self.is_open = True
        self._n = 0
        self._pages: NDArray[np.int32] = np.empty(_FIRST_ROOM, dtype=np.int32)

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, index: int) -> int:
        return int(self._pages[index])

    def __setitem__(self, index: int, page: int) -> None:
        self._pages[index] = page

    @property
    def pages(self) -> NDArray[np.int32]:
        """int32 [pages]; a view."""
        return self._pages[: self._n]

    def extend(self, pages: Iterable[int]) -> None:
        for page in pages:
            if self._n == len(self._pages):
                self._pages = np.concatenate([self._pages, np.empty_like(self._pages)])
            self._pages[self._n] = page
            self._n += 1

    def cut(self, n_pages: int) -> list[int]:
        """Remove the pages from number n_pages on; which they were."""
        removed: list[int] = self._pages[n_pages : self._n].tolist()
        self._n = min(self._n, n_pages)
        return removed


class TaskTable(dict[int, PageTable]):
    """The page table and the count of cached tokens of each task, by task id."""
