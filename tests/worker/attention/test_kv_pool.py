"""What a pool stores of a row, in every format, and that nothing but the row decides it."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from support.kv_formats import FORMATS, fixed_scales_of

from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.model.model import AttentionShape

SHAPE = AttentionShape(num_layers=2, num_query_heads=4, num_kv_heads=2, head_dim=8)
NUM_SLOTS = 32
by_format = pytest.mark.parametrize("kv_format", FORMATS, ids=lambda kv_format: kv_format.name)


def make_store(kv_format, order=LayoutOrder.LAYER_FIRST):
    return KvStore(
        SHAPE,
        num_blocks=NUM_SLOTS // 4,
        block_size=4,
        kv_format=kv_format,
        fixed_scales=fixed_scales_of(kv_format, SHAPE),
        order=order,
    )


def random_rows(num_tokens, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(2, num_tokens, SHAPE.num_kv_heads, SHAPE.head_dim, generator=generator)


def pools(store):
    return store.keys, store.values


@pytest.mark.parametrize("order", LayoutOrder)
@by_format
def test_rows_read_back_as_the_format_defines_them(kv_format, order):
    store = make_store(kv_format, order)
    slots = torch.tensor([5, 0, 31])
    rows = random_rows(3)
    store.write(1, slots, *rows)
    for pool, row in zip(pools(store), rows, strict=True):
        back = pool.read(1, slots)
        assert back.dtype == torch.float32
        max_code = kv_format.dtype.max_code
        if max_code is None:
            assert torch.equal(back, row.to(kv_format.dtype.storage).float())
            continue
        if pool.format.has_row_scales:
            scale = (row.abs().amax(-1, keepdim=True) / max_code).half().float()
        else:
            scale = pool.fixed_scale[1]
        assert torch.equal(back, (row / scale).round().clamp(-max_code, max_code) * scale)


@by_format
def test_a_slice_and_an_index_of_any_shape_read_the_same(kv_format):
    store = make_store(kv_format)
    store.write(0, torch.arange(NUM_SLOTS), *random_rows(NUM_SLOTS))
    for pool in pools(store):
        rows = pool.read(0, slice(4, 16))
        assert rows.shape == (12, 2, 8)
        assert torch.equal(pool.read(0, torch.arange(4, 16)), rows)
        assert torch.equal(pool.read(0, torch.arange(4, 16).view(3, 4)), rows.view(3, 4, 2, 8))


def test_float32_rows_are_read_where_they_lie():
    store = make_store(FORMATS[0])
    assert store.keys.read(1, slice(4, 16)).data_ptr() == store.keys.rows[1, 4].data_ptr()


@pytest.mark.parametrize("order", LayoutOrder)
@by_format
def test_a_write_touches_only_its_slots_of_its_layer(kv_format, order):
    store = make_store(kv_format, order)
    slots = torch.tensor([5, 0, 14])
    store.write(1, slots, *random_rows(3))
    for pool in pools(store):
        for tensor in pool.tensors():
            assert tensor[1, slots].any()
            tensor[1, slots] = 0
            assert not tensor.any()


@by_format
@given(st.permutations(range(NUM_SLOTS)), st.integers(0, NUM_SLOTS))
def test_a_rows_bytes_depend_on_the_row_alone(kv_format, order_of_writes, cut):
    """Other order, other chunks, other neighbours, another place before: the same bytes."""
    rows = random_rows(NUM_SLOTS)
    at_once, in_parts = make_store(kv_format), make_store(kv_format)
    at_once.write(0, torch.arange(NUM_SLOTS), *rows)
    in_parts.write(0, torch.arange(NUM_SLOTS), *(1000 * random_rows(NUM_SLOTS, seed=1)))
    for part in (order_of_writes[:cut], order_of_writes[cut:]):
        in_parts.write(0, torch.tensor(part, dtype=torch.int64), *rows[:, part])
    for one, other in zip(pools(at_once), pools(in_parts), strict=True):
        for first, second in zip(one.tensors(), other.tensors(), strict=True):
            assert torch.equal(first, second)


@pytest.mark.parametrize("dtype", [KvDtype.INT8, KvDtype.INT4])
def test_beyond_fixed_scales_rows_saturate(dtype):
    store = make_store(KvFormat(dtype, KvScales.HEAD))
    store.write(0, torch.tensor([3]), *torch.full((2, 1, 2, 8), -1e9))
    for pool in pools(store):
        assert torch.equal(pool.read(0, torch.tensor([3]))[0], -dtype.max_code * pool.fixed_scale[0])


@by_format
@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
def test_what_is_not_finite_never_looks_finite(kv_format, bad):
    """Floats keep it, row scales become NaN, and under fixed scales it is not taken at all."""
    store = make_store(kv_format)
    rows = random_rows(3)
    rows[:, 1, 0, 5] = bad
    for pool, row in zip(pools(store), rows, strict=True):
        if pool.format.has_fixed_scales:
            with pytest.raises(AssertionError, match="layer 1: a row to store is not finite"):
                pool.write(1, torch.tensor([0, 1, 2]), row)
            continue
        pool.write(1, torch.tensor([0, 1, 2]), row)
        back = pool.read(1, torch.tensor([0, 1, 2]))
        assert not back[1, 0, 5].isfinite()
        assert back[[0, 2]].isfinite().all()
        assert back[1, 1].isfinite().all()
