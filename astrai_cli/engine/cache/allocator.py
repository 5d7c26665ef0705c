"""Which pages are free, who holds the others, and which of the unheld to give up first."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable


class Allocator:
    """Pages 0 … n_pages - 1, each free, held (and counted how often), or cached.

    A cached page is held by nobody and its contents are worth keeping; when no page
    is free, the one that was released first is given up.
    """

    def __init__(self, n_pages: int, on_evict: Callable[[int], None]) -> None:
        """on_evict is told of a cached page whose contents are about to be lost."""
        self.n_pages = n_pages
        self._on_evict = on_evict
        self._free = (1 << n_pages) - 1  # bit p: page p is free
        self._holders = [0] * n_pages
        self._cached: OrderedDict[int, None] = OrderedDict()  # released first, first

    @property
    def n_cached(self) -> int:
        return len(self._cached)

    @property
    def n_available(self) -> int:
        """Pages that `allocate` can give."""
        return self._free.bit_count() + len(self._cached)

    def holders(self, page: int) -> int:
        return self._holders[page]

    def allocate(self) -> int:
        """A page with one holder: a free one if there is any. Needs an available one."""
        if self._free:
            page = (self._free & -self._free).bit_length() - 1
            self._free ^= 1 << page
        else:
            page, _ = self._cached.popitem(last=False)
            self._on_evict(page)
        self._holders[page] = 1
        return page

    def acquire(self, pages: Iterable[int]) -> None:
        """One more holder for pages that are held or cached."""
        for page in pages:
            if not self._holders[page]:
                del self._cached[page]
            self._holders[page] += 1

    def release(self, page: int, *, keep: bool) -> None:
        """One holder less; without any the page is cached, if it is to be kept, or free."""
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if keep:
            self._cached[page] = None
        else:
            self._free |= 1 << page
