"""How many blocks the settings ask for, and when they are too few."""

from __future__ import annotations

import pytest

from prefixcache_worker.config import WorkerConfig
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.server.pool_size import plan_pool

BLOCK_BYTES = 1000


@pytest.mark.parametrize(
    ("config", "num_requested", "num_headroom"),
    [
        (WorkerConfig(kv_memory=10_999), 10, 3),  # headroom is rounded up
        (WorkerConfig(kv_memory=8_000, kv_headroom=0.25), 8, 2),
        (WorkerConfig(kv_blocks=7, kv_headroom=0.0), 7, 0),
        (WorkerConfig(kv_blocks=2, kv_headroom=1.0), 2, 2),
    ],
)
def test_the_pool_is_what_was_asked_for_and_headroom(
    config: WorkerConfig, num_requested: int, num_headroom: int
):
    pool = plan_pool(config, BLOCK_BYTES)
    assert (pool.num_requested_blocks, pool.num_headroom_blocks) == (num_requested, num_headroom)
    assert pool.num_blocks == num_requested + num_headroom
    assert pool.pool_bytes == pool.num_blocks * BLOCK_BYTES


def test_the_pool_describes_itself():
    text = str(plan_pool(WorkerConfig(kv_blocks=8), 1 << 20))
    assert text == "8 KV blocks + 2 headroom, 1MiB each, 10MiB in all"


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        (WorkerConfig(kv_memory=1_999), r"^--kv-memory: 1\.952KiB gives 1 blocks of 1000B, too few"),
        (WorkerConfig(kv_memory=1), r"^--kv-memory: 1B gives 0 blocks of 1000B, too few"),
        (WorkerConfig(kv_blocks=1), r"^--kv-blocks: 1 blocks of 1000B, too few for one request"),
    ],
)
def test_too_little_memory_for_one_request_is_refused_with_numbers(config: WorkerConfig, sentence: str):
    with pytest.raises(ConfigError, match=sentence) as caught:
        plan_pool(config, BLOCK_BYTES)
    assert str(caught.value).endswith("give at least 2 blocks, 1.953KiB")
