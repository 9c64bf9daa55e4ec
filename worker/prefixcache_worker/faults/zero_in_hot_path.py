"""Room for the whole context is zeroed when a request begins.

What a static cache does that is cleared for each request: no answer depends on it, since rows are written
before they are read, and every first token waits for it.
"""

from __future__ import annotations

from prefixcache import PrefixCache
from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.model.model import StepAttention


def plant(engine: Engine) -> None:
    """The first step of each request zeroes as many free blocks as the longest sequence could take."""
    cache = engine.cache
    assert isinstance(cache, PrefixCache)
    clearing = _ClearingBackend(engine._attention, cache, -(-engine.max_total_tokens // cache.block_size))
    engine._attention = clearing
    acquire = cache.acquire

    def acquire_cleared(*arguments: object, **options: object) -> object:
        handle = acquire(*arguments, **options)  # type: ignore[arg-type]
        clearing.is_due = True
        return handle

    cache.acquire = acquire_cleared  # type: ignore[method-assign, assignment]


class _ClearingBackend:
    """Another backend. Clears before a step, when what left the pool for a tier has been copied there."""

    def __init__(self, backend: AttentionBackend, cache: PrefixCache, num_blocks: int) -> None:
        self._backend = backend
        self._cache = cache
        self._num_blocks = num_blocks
        self.is_due = False

    def __call__(self, plan: AttentionPlan, store: KvStore) -> StepAttention:
        if self.is_due:
            store.fill_blocks(self._cache._pool._free_ids[-self._num_blocks :], 0.0)
            self.is_due = False
        return self._backend(plan, store)
