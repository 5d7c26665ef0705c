"""Caches: the abstract interface and the implementations the scheduler can use."""

from astrai_cli.engine.cache.base import Identity, KVCache, KVCacheView
from astrai_cli.engine.cache.contiguous import ContiguousCache, ContiguousCacheView
from astrai_cli.engine.cache.paged import PageCache, PageCacheView
from astrai_cli.engine.cache.storage import Storage

__all__ = [
    "ContiguousCache",
    "ContiguousCacheView",
    "Identity",
    "KVCache",
    "KVCacheView",
    "PageCache",
    "PageCacheView",
    "Storage",
]
