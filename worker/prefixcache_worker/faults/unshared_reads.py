"""A run of rows that several sequences share is read once for each of them.

Prefix sharing then saves memory and prefills, and no reads: what paged attention kernels do that take one
block table for each sequence.
"""

from __future__ import annotations

from prefixcache_worker.attention.by_window import distinct_windows
from prefixcache_worker.attention.planner import AttentionPlanner
from prefixcache_worker.engine.engine import Engine


def plant(engine: Engine) -> None:
    """The engine plans as if no block were in two tables."""
    windows = distinct_windows(engine.kv_store.layout.shape)
    engine._planner = AttentionPlanner(engine.cache.block_size, windows, share=False)
