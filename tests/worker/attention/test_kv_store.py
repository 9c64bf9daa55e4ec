"""Blocks of the pool: how they are copied, poisoned, and carried elsewhere, and that nothing else moves."""

import pytest
import torch
from support.kv_formats import FORMATS, fixed_scales_of

from prefixcache import BlockCopy
from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import FixedScales, KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.model.model import AttentionShape

SHAPE = AttentionShape(num_layers=3, num_query_heads=4, num_kv_heads=2, head_dim=8)
ODD_SHAPE = AttentionShape(num_layers=1, num_query_heads=1, num_kv_heads=1, head_dim=5)
by_format = pytest.mark.parametrize("kv_format", FORMATS, ids=lambda kv_format: kv_format.name)


def make_store(kv_format, *, shape=SHAPE, order=LayoutOrder.LAYER_FIRST, block_size=4, fill=True):
    """Five blocks; with `fill`, every slot of every layer holds a row of its own."""
    store = KvStore(
        shape,
        num_blocks=5,
        block_size=block_size,
        kv_format=kv_format,
        fixed_scales=fixed_scales_of(kv_format, shape),
        order=order,
    )
    if fill:
        torch.manual_seed(0)
        num_slots = store.layout.num_slots
        for layer in range(shape.num_layers):
            rows = torch.randn(2, num_slots, shape.num_kv_heads, shape.head_dim)
            store.write(layer, torch.arange(num_slots), *rows)
    return store


def tensors(store):
    return [*store.keys.tensors(), *store.values.tensors()]


@pytest.mark.parametrize("order", LayoutOrder)
@by_format
def test_copy_moves_the_named_rows_in_every_layer(kv_format, order):
    """Rows and scales alike."""
    store = make_store(kv_format, order=order)
    before = [tensor.clone() for tensor in tensors(store)]
    store.copy_blocks([BlockCopy(source=1, target=3, num_slots=3)])
    for tensor, old in zip(tensors(store), before, strict=True):
        assert torch.equal(tensor[:, 12:15], old[:, 4:7])
        assert torch.equal(tensor[:, 15:], old[:, 15:])
        assert torch.equal(tensor[:, :12], old[:, :12])


@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@by_format
def test_a_poisoned_block_reads_as_poison_and_its_neighbours_as_before(kv_format, poison):
    """Under fixed scales nothing can be NaN: there the largest code stands in every element."""
    store = make_store(kv_format)
    slots = torch.arange(20)
    before = [pool.read(1, slots) for pool in (store.keys, store.values)]
    store.fill_blocks([2], poison)
    for pool, old in zip((store.keys, store.values), before, strict=True):
        now = pool.read(1, slots)
        assert torch.equal(now[:8], old[:8])
        assert torch.equal(now[12:], old[12:])
        if pool.format.has_fixed_scales:
            assert torch.equal(now[8:12], (kv_format.dtype.max_code * pool.fixed_scale[1]).expand(4, 2, 8))
        else:
            assert not now[8:12].isfinite().any()


@pytest.mark.parametrize("order", LayoutOrder)
@by_format
def test_records_carry_blocks_into_other_blocks_of_another_layout(kv_format, order):
    source = make_store(kv_format)
    target = make_store(kv_format, order=order, fill=False)
    assert target.fingerprint == source.fingerprint
    records = source.read_blocks([3, 1])
    assert len(records) == 2 * source.block_bytes
    target.write_blocks([0, 4], records)
    assert target.read_blocks([0, 4]) == records
    for new, old in zip(tensors(target), tensors(source), strict=True):
        assert torch.equal(new[:, :4], old[:, 12:16])
        assert torch.equal(new[:, 16:], old[:, 4:8])
        assert not new[:, 4:16].any()


def test_a_record_is_rows_then_scales_of_keys_then_of_values():
    store = make_store(KvFormat(KvDtype.INT8, KvScales.CHANNEL))
    slots = slice(8, 12)
    parts = [store.keys.rows[:, slots], store.values.rows[:, slots], store.values.scales[:, slots]]
    expected = b"".join(part.contiguous().numpy().tobytes() for part in parts)
    assert store.read_blocks([2]) == expected
    assert store.read_blocks([2, 0])[: store.block_bytes] == expected


def test_no_block_is_no_record():
    store = make_store(FORMATS[0])
    before = store.keys.rows.clone()
    assert store.read_blocks([]) == b""
    store.write_blocks([], b"")
    assert torch.equal(store.keys.rows, before)


@pytest.mark.parametrize("block_ids", [[2], [2, 4, 0]])
def test_records_of_an_odd_number_of_bytes_fit_too(block_ids):
    """The scales then begin at an odd address."""
    int8 = KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD)
    source = make_store(int8, shape=ODD_SHAPE, block_size=1)
    target = make_store(int8, shape=ODD_SHAPE, block_size=1, fill=False)
    assert source.block_bytes == 2 * (5 + 2)
    target.write_blocks(block_ids, source.read_blocks(block_ids))
    for new, old in zip(tensors(target), tensors(source), strict=True):
        assert torch.equal(new[:, block_ids], old[:, block_ids])


def test_the_fingerprint_tells_stores_apart_whose_records_differ():
    stores = [make_store(kv_format, fill=False) for kv_format in FORMATS]
    stores.append(make_store(FORMATS[0], fill=False, block_size=8))
    stores.append(make_store(FORMATS[0], fill=False, shape=ODD_SHAPE))
    scales = fixed_scales_of(KvFormat(KvDtype.INT8, KvScales.HEAD), SHAPE)
    assert scales.keys is not None
    stores.append(
        KvStore(
            SHAPE,
            num_blocks=5,
            block_size=4,
            kv_format=KvFormat(KvDtype.INT8, KvScales.HEAD),
            fixed_scales=FixedScales(scales.keys.nextafter(torch.tensor(9.0)), scales.values),
        )
    )
    assert len({store.fingerprint for store in stores}) == len(stores) == len(FORMATS) + 3
