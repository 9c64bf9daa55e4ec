"""Rows of single blocks, read and written beside the engine's own operators."""

from __future__ import annotations

import pytest
import torch
from support.kv_formats import FORMATS, fixed_scales_of

from prefixcache import BlockId
from prefixcache_worker.attention.kv_format import KvFormat
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.model.model import AttentionShape
from prefixcache_worker.snapshots.block_records import BlockRecords

SHAPE = AttentionShape(num_layers=3, num_query_heads=4, num_kv_heads=2, head_dim=8)
BLOCKS = [BlockId(i) for i in range(5)]


def store_of(kv_format: KvFormat, order: LayoutOrder, *, seed: int | None = None) -> KvStore:
    """Five blocks of rows as no others, or of zeros."""
    scales = fixed_scales_of(kv_format, SHAPE)
    store = KvStore(
        SHAPE, num_blocks=5, block_size=4, kv_format=kv_format, fixed_scales=scales, order=order,
        with_summaries=True,
    )  # fmt: skip
    if seed is not None:
        generator = torch.Generator().manual_seed(seed)
        for layer in range(SHAPE.num_layers):
            key, value = torch.randn(2, 20, 2, 8, generator=generator)
            store.write(layer, torch.arange(20), key, value)
    return store


@pytest.mark.parametrize("order", LayoutOrder)
@pytest.mark.parametrize("kv_format", FORMATS, ids=lambda kv_format: kv_format.name)
def test_records_are_those_of_the_store_and_fit_any_layout(kv_format: KvFormat, order: LayoutOrder):
    source = store_of(kv_format, order, seed=1)
    records = BlockRecords(source)
    copies = {block_id: bytes(records.read(block_id)) for block_id in BLOCKS}
    assert copies == {block_id: source.read_blocks([block_id]) for block_id in BLOCKS}

    for other_order in LayoutOrder:
        target = store_of(kv_format, other_order)
        for block_id in BLOCKS:
            BlockRecords(target).write(BlockId(4 - block_id), memoryview(copies[block_id]))
        assert target.read_blocks(BLOCKS[::-1]) == source.read_blocks(BLOCKS)
        assert target.summaries is not None
        assert source.summaries is not None
        assert torch.equal(target.summaries.least.flip(1), source.summaries.least)
        assert torch.equal(target.summaries.greatest.flip(1), source.summaries.greatest)
