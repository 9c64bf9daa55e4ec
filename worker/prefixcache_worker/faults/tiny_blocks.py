"""Blocks of one token: as much bookkeeping as can be, for each token an entry in a table and a count."""

from __future__ import annotations

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.faults.block_size import with_block_size


def break_settings(config: WorkerConfig) -> WorkerConfig:
    """A block for each token."""
    return with_block_size(config, 1)
