"""Where things lie: the map that is printed, the strides that kernels take, and offsets beyond 32 bits."""

import ctypes
import mmap

import pytest
import torch
from support.kv_formats import FORMATS, fixed_scales_of

from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import KvLayout, LayoutOrder
from prefixcache_worker.model.model import AttentionShape

SHAPE = AttentionShape(num_layers=3, num_query_heads=4, num_kv_heads=2, head_dim=8)
LARGE = AttentionShape(num_layers=80, num_query_heads=64, num_kv_heads=8, head_dim=128)


@pytest.mark.parametrize("order", LayoutOrder)
@pytest.mark.parametrize("width", [1, 8])
def test_every_element_has_its_own_place_and_none_is_left_over(order, width):
    layout = KvLayout(shape=SHAPE, num_blocks=4, block_size=4, order=order)
    tensor = layout.allocate(width, torch.int32, "cpu")
    assert tensor.stride() == layout.strides(width)
    flat = tensor.as_strided((tensor.numel(),), (1,))
    flat.copy_(torch.arange(tensor.numel()))
    assert torch.equal(tensor.flatten().sort().values, flat)


def test_layer_first_keeps_a_layer_and_head_first_a_head_together():
    sizes = {"shape": SHAPE, "num_blocks": 4, "block_size": 4}
    assert KvLayout(**sizes, order=LayoutOrder.LAYER_FIRST).strides(8) == (16 * 2 * 8, 2 * 8, 8, 1)
    assert KvLayout(**sizes, order=LayoutOrder.HEAD_FIRST).strides(8) == (16 * 8, 8, 3 * 16 * 8, 1)


@pytest.mark.parametrize("order", LayoutOrder)
@pytest.mark.parametrize("kv_format", FORMATS, ids=lambda kv_format: kv_format.name)
def test_the_map_says_where_each_element_is(kv_format, order):
    store = KvStore(
        SHAPE,
        num_blocks=4,
        block_size=4,
        kv_format=kv_format,
        fixed_scales=fixed_scales_of(kv_format, SHAPE),
        order=order,
    )
    tensors = {
        "keys.rows": store.keys.rows,
        "keys.scales": store.keys.scales,
        "values.rows": store.values.rows,
        "values.scales": store.values.scales,
    }
    places = store.places()
    assert [place.name for place in places] == [name for name in tensors if tensors[name] is not None]
    for place in places:
        tensor = tensors[place.name]
        assert place.dtype == tensor.dtype
        assert place.size[:3] == tensor.shape[:3]
        for layer, slot, head in ((0, 0, 0), (2, 15, 1), (1, 7, 0)):
            address = tensor[layer, slot, head].data_ptr()
            assert place.offset(layer, slot, head) == address - tensor.data_ptr()
    assert sum(place.num_bytes for place in places) == store.num_blocks * store.block_bytes


@pytest.mark.parametrize("order", LayoutOrder)
@pytest.mark.parametrize(
    "kv_format",
    [KvFormat(KvDtype.FP16), KvFormat(KvDtype.INT4, KvScales.TOKEN_HEAD)],
    ids=lambda kv_format: kv_format.name,
)
def test_offsets_do_not_wrap_at_32_bits(kv_format, order):
    """A pool that no machine holds, on a device that holds nothing."""
    store = KvStore(LARGE, num_blocks=200_000, block_size=16, kv_format=kv_format, device="meta", order=order)
    for place, tensor in zip(store.places(), (*store.keys.tensors(), *store.values.tensors()), strict=True):
        last = place.offset(79, 3_199_999, 7, place.size[3] - 1)
        assert last == place.num_bytes - tensor.itemsize > 2**31
        corner = tensor[79, 3_199_999, 7]
        assert corner.storage_offset() * tensor.itemsize == place.offset(79, 3_199_999, 7)


@pytest.mark.parametrize("order", LayoutOrder)
def test_s22_the_pages_of_the_pool_are_there_before_anything_is_written(order):
    """Memory that is only promised, as `torch.empty` gives it, would be fetched while a request waits."""
    layout = KvLayout(shape=SHAPE, num_blocks=1 << 14, block_size=16, order=order)
    tensor = layout.allocate(8, torch.float32, "cpu")  # 48 MiB, too many for what was freed before
    first_page = -(-tensor.data_ptr() // mmap.PAGESIZE)
    num_pages = (tensor.data_ptr() + tensor.nbytes) // mmap.PAGESIZE - first_page
    is_resident = (ctypes.c_ubyte * num_pages)()
    address, size = ctypes.c_void_p(first_page * mmap.PAGESIZE), ctypes.c_size_t(num_pages * mmap.PAGESIZE)
    assert ctypes.CDLL(None).mincore(address, size, is_resident) == 0
    assert num_pages == sum(flag & 1 for flag in is_resident) > 10_000
