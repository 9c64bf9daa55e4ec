"""One block of each request keeps a reference that nobody drops.

What a release does that stops one short of the last block: the pool shrinks by a block with every request,
until nothing fits any more. No answer is wrong before that.
"""

from __future__ import annotations

from prefixcache import CacheHandle, PrefixCache
from prefixcache_worker.engine.engine import Engine


def plant(engine: Engine) -> None:
    """The last block of every handle that is released is never free again."""
    cache = engine.cache
    assert isinstance(cache, PrefixCache)
    release, pool = cache.release, cache._pool

    def release_all_but_one(handle: CacheHandle) -> None:
        pool.retain(handle.block_table[-1:])
        release(handle)

    cache.release = release_all_but_one  # type: ignore[method-assign]
