"""Rows of a pool on a GPU: into tiers and snapshots, and back."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from support.kv_formats import FORMATS, fixed_scales_of

from prefixcache import BlockId
from prefixcache_worker.attention.kv_format import KvFormat
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.tier_store import file_tier, memory_tier
from prefixcache_worker.model.model import AttentionShape
from prefixcache_worker.snapshots.block_records import BlockRecords

CUDA = torch.device("cuda")
SHAPE = AttentionShape(num_layers=3, num_query_heads=4, num_kv_heads=2, head_dim=16)
BLOCK_SIZE, NUM_BLOCKS = 16, 40
BLOCKS = [BlockId(i) for i in range(NUM_BLOCKS)]


def store_of(kv_format: KvFormat, *, seed: int | None = None) -> KvStore:
    """Rows as no others, or zeros."""
    store = KvStore(
        SHAPE,
        num_blocks=NUM_BLOCKS,
        block_size=BLOCK_SIZE,
        device=CUDA,
        kv_format=kv_format,
        fixed_scales=fixed_scales_of(kv_format, SHAPE),
    )
    if seed is not None:
        num_slots = NUM_BLOCKS * BLOCK_SIZE
        generator = torch.Generator().manual_seed(seed)
        for layer in range(SHAPE.num_layers):
            key, value = torch.randn(2, num_slots, 2, 16, generator=generator).to(CUDA)
            store.write(layer, torch.arange(num_slots, device=CUDA), key, value)
    return store


@pytest.mark.parametrize("kv_format", FORMATS, ids=lambda kv_format: kv_format.name)
def test_a_snapshot_reads_the_rows_as_they_were_written(kv_format: KvFormat) -> None:
    source, target = store_of(kv_format, seed=1), store_of(kv_format)
    records = BlockRecords(source)
    for block_id in BLOCKS:
        BlockRecords(target).write(block_id, memoryview(bytes(records.read(block_id))))
    assert any(source.read_blocks(BLOCKS))
    assert target.read_blocks(BLOCKS) == source.read_blocks(BLOCKS)


@pytest.mark.parametrize("kv_format", FORMATS, ids=lambda kv_format: kv_format.name)
@pytest.mark.parametrize("kind", ["memory", "file"])
def test_a_tier_gives_back_what_it_was_given(kv_format: KvFormat, kind: str, tmp_path: Path) -> None:
    source, target = store_of(kv_format, seed=2), store_of(kv_format)
    if kind == "memory":
        tier = memory_tier(NUM_BLOCKS, source.record_bytes, device=CUDA)
    else:
        tier = file_tier(str(tmp_path / "tier"), NUM_BLOCKS, source.record_bytes)
    places = range(NUM_BLOCKS)[::-1]
    tier.write(places, source.records(BLOCKS))
    assert any(source.read_blocks(BLOCKS))
    target.set_records(BLOCKS, tier.read(places, CUDA))
    assert target.read_blocks(BLOCKS) == source.read_blocks(BLOCKS)
