"""Caches: the abstract interface and the implementations the scheduler can use."""

from astrai_cli.engine.cache.base import KVCache, KVCacheView
from astrai_cli.engine.cache.contiguous import ContiguousCache, ContiguousCacheView

__all__ = ["ContiguousCache", "ContiguousCacheView", "KVCache", "KVCacheView"]
