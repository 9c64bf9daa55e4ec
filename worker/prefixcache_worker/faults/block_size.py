"""Blocks of another size in a pool of as many tokens."""

from __future__ import annotations

from dataclasses import replace

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.server.pool_size import MIN_POOL_BLOCKS


def with_block_size(config: WorkerConfig, block_size: int) -> WorkerConfig:
    """The same settings with blocks of so many tokens."""
    num_blocks = config.kv_blocks
    if num_blocks is not None:
        num_blocks = max(MIN_POOL_BLOCKS, num_blocks * config.block_size // block_size)
    return replace(config, block_size=block_size, kv_blocks=num_blocks)
