"""The pool has a fraction of the blocks that it should have.

Requests then push each other out: running ones are preempted and computed again, and what they might have
shared is evicted before it is asked for.
"""

from __future__ import annotations

from dataclasses import replace

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.server.pool_size import MIN_POOL_BLOCKS, USUAL_POOL_BYTES

FRACTION = 16


def break_settings(config: WorkerConfig) -> WorkerConfig:
    """A sixteenth of the pool, and nothing beyond."""
    if config.kv_blocks is not None:
        return replace(config, kv_blocks=max(MIN_POOL_BLOCKS, config.kv_blocks // FRACTION), kv_headroom=0.0)
    return replace(config, kv_memory=(config.kv_memory or USUAL_POOL_BYTES) // FRACTION, kv_headroom=0.0)
