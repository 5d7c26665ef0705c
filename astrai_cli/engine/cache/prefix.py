"""Finding pages by what is in them and in all pages before them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from astrai_cli.engine.cache.base import Identity

ROOT = -1
"""The parent of a sequence's first page."""

_BASE = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


@dataclass(frozen=True, slots=True)
class _Contents:
    key: int
    parent: int
    ids: bytes


class PrefixCache:
    """Full pages by a rolling hash of the identities of all positions up to their ends.

    A page's key is a polynomial in those identities, modulo 2**64, its first position
    highest: key(x[0 … n]) = key(x[0 … n - 1]) * base + x[n] + 1. So a page's key goes
    on from that of the page before it. A key finds a page; the page's parent and its
    own identities, which are kept, then prove that it is the right one.
    """

    def __init__(self, page_size: int, key_bits: int = 64) -> None:
        """key_bits: fewer make different contents fall on one key more often."""
        self._page_size = page_size
        self._key_mask = 2**key_bits - 1
        powers = [pow(_BASE, exponent, 2**64) for exponent in range(page_size, -1, -1)]
        self._shift = powers[0]
        self._powers = np.array(powers[1:], dtype=np.uint64)
        self._pages: dict[int, int] = {}
        self._contents: dict[int, _Contents] = {}

    def __contains__(self, page: int) -> bool:
        return page in self._contents

    def extend_keys(self, keys: list[int], identity: Identity, n_pages: int) -> None:
        """Append to the keys of a sequence's first pages those up to page n_pages."""
        first = len(keys)
        if n_pages <= first:
            return
        span = identity[first * self._page_size : n_pages * self._page_size].astype(np.uint64) + 1
        sums: NDArray[np.uint64] = span.reshape(-1, self._page_size) @ self._powers
        key = keys[-1] if keys else 0
        for each in sums.tolist():
            key = (key * self._shift + each) & _MASK
            keys.append(key)

    def ids(self, identity: Identity, index: int) -> bytes:
        """The identities of a sequence's page number `index`, as they are compared."""
        start = index * self._page_size
        return identity[start : start + self._page_size].astype(np.int64).tobytes()

    def find(self, key: int, parent: int, ids: bytes) -> int | None:
        """The page with these contents after those of `parent`."""
        page = self._pages.get(key & self._key_mask)
        if page is None:
            return None
        found = self._contents[page]
        return page if found.parent == parent and found.ids == ids else None

    def insert(self, page: int, key: int, parent: int, ids: bytes) -> bool:
        """Make a page known; False where another one has its key."""
        if self._pages.setdefault(key & self._key_mask, page) != page:
            return False
        self._contents[page] = _Contents(key, parent, ids)
        return True

    def forget(self, page: int) -> None:
        """The page's contents are about to be lost."""
        del self._pages[self._contents.pop(page).key & self._key_mask]
