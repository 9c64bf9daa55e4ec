"""Blocks of 256 tokens: short requests hold room that they never fill, and less is given back at a time."""

from __future__ import annotations

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.faults.block_size import with_block_size


def break_settings(config: WorkerConfig) -> WorkerConfig:
    """A block for every 256 tokens."""
    return with_block_size(config, 256)
