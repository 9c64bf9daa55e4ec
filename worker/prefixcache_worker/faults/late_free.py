"""Blocks are given back only when the next request ends.

What a "free list to be emptied later" does, or a reference in a variable that lives one request too long:
one request always holds blocks that nobody reads any more, however long the worker idles.
"""

from __future__ import annotations

from prefixcache import CacheHandle, PrefixCache
from prefixcache_worker.engine.engine import Engine


def plant(engine: Engine) -> None:
    """A handle that is released stays alive until the next one is."""
    cache = engine.cache
    assert isinstance(cache, PrefixCache)
    release = cache.release
    kept: list[CacheHandle] = []

    def release_late(handle: CacheHandle) -> None:
        kept.append(handle)
        if len(kept) > 1:
            release(kept.pop(0))

    cache.release = release_late  # type: ignore[method-assign]
