"""Pages shared by reference: allocated, matched by their contents, given up when unused."""

from __future__ import annotations

from collections.abc import Sequence

from astrai_cli.engine.cache.allocator import Allocator
from astrai_cli.engine.cache.base import Identity
from astrai_cli.engine.cache.prefix import ROOT, PrefixCache


class PagePool:
    """All pages, and what is in the full ones that have been published.

    A page is written by its one holder until it is published; then it never changes
    and may have several. Whoever holds a published page holds its parents too, so a
    page is never given up before those that go on from it.
    """

    def __init__(self, n_pages: int, page_size: int, key_bits: int = 64) -> None:
        self._prefixes = PrefixCache(page_size, key_bits)
        self._allocator = Allocator(n_pages, on_evict=self._prefixes.forget)

    @property
    def n_used(self) -> int:
        return self._allocator.n_pages - self._allocator.n_available

    @property
    def n_cached(self) -> int:
        return self._allocator.n_cached

    @property
    def n_available(self) -> int:
        """Pages that can be allocated, cached ones included."""
        return self._allocator.n_available

    def extend_keys(self, keys: list[int], identity: Identity, n_pages: int) -> None:
        """See PrefixCache.extend_keys."""
        self._prefixes.extend_keys(keys, identity, n_pages)

    def match(
        self, identity: Identity, keys: Sequence[int], first: int = 0, parent: int = ROOT
    ) -> list[int]:
        """The published pages, from number `first` on and at most to the last key.

        `parent` holds the page before the first. The pages are not acquired yet.
        """
        pages: list[int] = []
        for index in range(first, len(keys)):
            page = self._prefixes.find(keys[index], parent, self._prefixes.ids(identity, index))
            if page is None:
                break
            pages.append(page)
            parent = page
        return pages

    def n_unheld(self, pages: Sequence[int]) -> int:
        """How many of some published pages would no longer be available once acquired."""
        return sum(not self._allocator.holders(page) for page in pages)

    def acquire(self, pages: Sequence[int]) -> None:
        """Hold published pages."""
        self._allocator.acquire(pages)

    def allocate(self) -> int:
        """Hold a page to write to. Needs an available one."""
        return self._allocator.allocate()

    def publish(
        self, page: int, identity: Identity, index: int, key: int, parent: int
    ) -> int | None:
        """Let others match a full page, number `index` of its sequence, after `parent`.

        Returns the page to hold from now on: where another one has the same contents
        already, that one, and the holder's own is given back. None where the page
        cannot be published, because different contents have its key.
        """
        ids = self._prefixes.ids(identity, index)
        known = self._prefixes.find(key, parent, ids)
        if known is not None:
            self.acquire([known])
            self.release([page])
            return known
        return page if self._prefixes.insert(page, key, parent, ids) else None

    def release(self, pages: Sequence[int]) -> None:
        """Stop holding pages, given in the order of their sequence."""
        for page in reversed(pages):
            self._allocator.release(page, keep=page in self._prefixes)
