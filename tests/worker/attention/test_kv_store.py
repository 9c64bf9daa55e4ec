"""The pool: where rows lie, how they are copied, and that nothing else moves."""

import pytest
import torch

from prefixcache import BlockCopy
from prefixcache_worker.attention.kv_format import KvDtype, KvFormat
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import KvLayout, LayoutOrder
from prefixcache_worker.model.model import AttentionShape

SHAPE = AttentionShape(num_layers=3, num_query_heads=4, num_kv_heads=2, head_dim=8)


@pytest.mark.parametrize("order", LayoutOrder)
def test_every_row_has_its_own_place(order):
    store = KvStore(SHAPE, num_blocks=4, block_size=4, order=order)
    offsets = torch.arange(store.keys.rows.numel()).as_strided((store.keys.rows.numel(),), (1,))
    store.keys.rows.as_strided((store.keys.rows.numel(),), (1,)).copy_(offsets)
    assert torch.unique(store.keys.rows).numel() == 3 * 16 * 2 * 8
    assert store.keys.rows.stride() == store.layout.strides(8)


@pytest.mark.parametrize("order", LayoutOrder)
def test_write_touches_only_its_slots(order):
    store = KvStore(SHAPE, num_blocks=4, block_size=4, order=order)
    key, value = torch.randn(2, 3, 2, 8)
    store.write(1, torch.tensor([5, 0, 14]), key, value)
    assert torch.equal(store.keys.rows[1, [5, 0, 14]], key)
    assert torch.equal(store.values.rows[1, [5, 0, 14]], value)
    store.keys.rows[1, [5, 0, 14]] = 0
    store.values.rows[1, [5, 0, 14]] = 0
    assert not store.keys.rows.any()
    assert not store.values.rows.any()


def test_copy_moves_the_named_rows_in_every_layer():
    torch.manual_seed(0)
    store = KvStore(SHAPE, num_blocks=4, block_size=4)
    store.keys.rows.normal_()
    store.values.rows.normal_()
    before = store.keys.rows.clone(), store.values.rows.clone()
    store.copy_blocks([BlockCopy(source=1, target=3, num_slots=3)])
    for pool, old in zip((store.keys.rows, store.values.rows), before, strict=True):
        assert torch.equal(pool[:, 12:15], old[:, 4:7])
        assert torch.equal(pool[:, 15], old[:, 15])
        assert torch.equal(pool[:, :12], old[:, :12])


def test_seven_billion_model_takes_half_a_mebibyte_per_token():
    """2 * 32 layers * 32 heads * 128 elements * 2 bytes = 524,288 bytes."""
    shape = AttentionShape(num_layers=32, num_query_heads=32, num_kv_heads=32, head_dim=128)
    assert KvFormat(KvDtype.FP16).block_bytes(shape, 1) == 524_288
    assert KvFormat(KvDtype.FP16).block_bytes(shape, 16) == 16 * 524_288


def test_offsets_do_not_wrap_at_32_bits():
    layout = KvLayout(
        shape=AttentionShape(num_layers=80, num_query_heads=64, num_kv_heads=8, head_dim=128),
        num_blocks=100_000,
        block_size=16,
    )
    last = sum(
        (size - 1) * stride for size, stride in zip((80, 1_600_000, 8, 128), layout.strides(128), strict=True)
    )
    assert last == 80 * 1_600_000 * 8 * 128 - 1 > 2**31
