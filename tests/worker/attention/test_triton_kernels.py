"""Each Triton kernel equals its torch twin, in Triton's interpreter."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from support.attention_steps import (
    FLOAT_FORMATS,
    FP16,
    FP32,
    make_store,
    name_of,
    shape_of,
    tolerance,
)
from support.kv_formats import FORMATS
from support.triton_twins import copy_blocks_twin, merge_partials_twin, paged_attention_twin

from prefixcache import BlockCopy
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan, WorkItem
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.attention.triton.block_copy import copy_blocks
from prefixcache_worker.attention.triton.kv_write import write_rows
from prefixcache_worker.attention.triton.paged_attention import paged_attention
from prefixcache_worker.attention.triton.partials import Partials, merge_partials
from prefixcache_worker.attention.triton.step_table import NO_SLOT, PlanTable, StepTable, TableSize, tabulate
from prefixcache_worker.attention.triton.tile import TileShape
from prefixcache_worker.model.model import AttentionShape, AttentionWindow

CPU = torch.device("cpu")
TILE = TileShape(num_queries=16, num_rows=32, num_warps=4, num_stages=1)


def item(block_ids, first_position, num_rows, *, block_size, first_token=0, num_tokens=1, level=0):
    return WorkItem(
        block_ids=tuple(block_ids),
        first_row=first_position % block_size,
        num_rows=num_rows,
        first_position=first_position,
        first_token=first_token,
        num_tokens=num_tokens,
        level=level,
        num_sequences=1,
        masked=True,
    )


def plan_of(positions, items, block_size, window=None):
    """A plan made by hand: the kernels look at its items and positions; writes go to blocks of their own."""
    spans = tuple(SequenceSpan([100 + i] * 1000, position, 1) for i, position in enumerate(positions))
    return AttentionPlan(tuple(range(len(spans))), spans, tuple(items), block_size, window)


PLANS = {
    "a partial last block": plan_of([4], [item([3], 0, 5, block_size=8)], 8),
    "a run that starts inside a block": plan_of([22], [item([3, 1, 2], 5, 18, block_size=8)], 8),
    "blocks in no order": plan_of([31], [item([7, 2, 9, 4], 0, 32, block_size=8)], 8),
    "blocks of 64": plan_of([109], [item([2, 0], 20, 90, block_size=64)], 64),
    "a chunk exactly": plan_of([63], [item([5, 6, 7, 8], 0, 64, block_size=16)], 16),
    "a shared run, then tails": plan_of(
        [32, 33, 34],
        [
            item([1, 0], 0, 32, block_size=16, num_tokens=3),
            *(item([2 + i], 32, 1 + i, block_size=16, first_token=i, level=1) for i in range(3)),
        ],
        16,
    ),
    "a prompt of its own": plan_of(range(40), [item([4, 1, 0], 0, 40, block_size=16, num_tokens=40)], 16),
    "a prompt behind a shared run": plan_of(
        range(16, 23),
        [
            item([1], 0, 16, block_size=16, num_tokens=7),
            item([3], 16, 7, block_size=16, num_tokens=7, level=1),
        ],
        16,
    ),
    "a run in chunks": plan_of(
        [300],
        [
            item([*range(4)], 0, 64, block_size=16),
            item([*range(9), 11, 10, 9, 3, 2, 5], 64, 237, block_size=16, level=1),
        ],
        16,
    ),
    "a window inside the run": plan_of(
        range(70, 76),
        [item([1, 0, 3, 2, 5], 40, 36, block_size=16, num_tokens=6)],
        16,
        AttentionWindow(20),
    ),
    "a window with sinks": plan_of(
        [90],
        [item([4], 0, 3, block_size=16), item([1, 0], 80, 11, block_size=16, level=1)],
        16,
        AttentionWindow(11, 3),
    ),
    "sinks and window in one run": plan_of(
        range(50, 55), [item([4, 1, 0, 2], 0, 55, block_size=16, num_tokens=5)], 16, AttentionWindow(12, 2)
    ),
    "nothing that the query sees": plan_of(
        [5, 90], [item([0], 0, 6, block_size=16, num_tokens=2)], 16, AttentionWindow(8)
    ),
}


@pytest.mark.parametrize("kv_format", FLOAT_FORMATS, ids=name_of)
@pytest.mark.parametrize("plan", PLANS.values(), ids=PLANS)
def test_paged_attention_of_every_kind_of_item(plan, kv_format):
    compare_attention(plan, kv_format=kv_format)


@pytest.mark.parametrize(
    ("head_dim", "group_size"), [(8, 1), (64, 3), (80, 5), (96, 7), (128, 8), (128, 1), (64, 16)]
)
def test_paged_attention_of_every_shape(head_dim, group_size):
    compare_attention(PLANS["a shared run, then tails"], head_dim=head_dim, group_size=group_size)


@pytest.mark.parametrize("order", LayoutOrder)
@pytest.mark.parametrize("kv_format", FORMATS, ids=name_of)
def test_paged_attention_over_every_format_and_layout(kv_format, order):
    compare_attention(PLANS["a prompt behind a shared run"], order=order, kv_format=kv_format, head_dim=24)


def test_paged_attention_scales_scores_as_the_model_says():
    compare_attention(PLANS["a shared run, then tails"], score_scale=0.7)


@pytest.mark.parametrize("tile", [TileShape(16, 16, 4, 1), TileShape(64, 64, 4, 1)])
def test_paged_attention_in_other_tiles(tile):
    compare_attention(PLANS["a prompt of its own"], tile=tile)


def compare_attention(
    plan,
    *,
    kv_format=FP32,
    head_dim=16,
    group_size=3,
    order=LayoutOrder.LAYER_FIRST,
    tile=TILE,
    score_scale=None,
) -> None:
    """Partials of the kernel and of its twin over a pool that is NaN wherever no item reads."""
    torch.manual_seed(0)
    shape = AttentionShape(
        num_layers=2,
        num_query_heads=2 * group_size,
        num_kv_heads=2,
        head_dim=head_dim,
        score_scale=score_scale,
    )
    store = make_store(shape, 12, plan.block_size, kv_format, order=order)
    store.fill_blocks(range(12), torch.nan)
    slots = sorted({slot for read in plan.items for slot in read.slots(plan.block_size)})
    store.write(1, torch.tensor(slots), *torch.randn(2, len(slots), 2, head_dim))
    query = torch.randn(plan.num_tokens, shape.num_query_heads, head_dim)
    table = tabulate(plan, group_size=group_size, tile_queries=tile.num_queries)
    ours, twin = (empty_partials(table.size, shape) for _ in range(2))
    loaded = StepTable(table.size, plan.block_size, CPU)
    loaded.load(table)
    pools = store.keys, store.values
    paged_attention(query, *pools, 1, loaded, ours, tile, scale=shape.scale, window=plan.window)
    paged_attention_twin(
        query, *pools, 1, table, twin, plan=plan, tile_queries=tile.num_queries, scale=shape.scale
    )
    allowed = tolerance(kv_format)
    for partials in (ours, twin):  # weights are relative to a peak that depends on the steps
        partials.output.div_(partials.total.clamp(min=1e-30)[..., None])
    torch.testing.assert_close(ours.output, twin.output, **allowed)
    logs = [partials.peak + partials.total.log2() for partials in (ours, twin)]
    torch.testing.assert_close(*logs, atol=max(1e-3, allowed["atol"]), rtol=1e-3)


def empty_partials(size: TableSize, shape: AttentionShape) -> Partials:
    """Filled with NaN, so that what no program writes shows."""
    partials = Partials.empty(size.num_partials, shape.num_query_heads, shape.head_dim, "cpu")
    for tensor in partials:
        tensor.fill_(torch.nan)
    return partials


@pytest.mark.parametrize("num_programs", [1, 3, 1000])
def test_the_number_of_programs_changes_no_bit(num_programs):
    plan = PLANS["a run in chunks"]
    shape = shape_of(2, 3, 16)
    store = make_store(shape, 12, 16, FP32)
    store.keys.rows.normal_(generator=torch.Generator().manual_seed(0))
    store.values.rows.normal_(generator=torch.Generator().manual_seed(1))
    table = tabulate(plan, group_size=3, tile_queries=16)
    loaded = StepTable(table.size, 16, CPU)
    loaded.load(table)
    query = torch.randn(1, 6, 16, generator=torch.Generator().manual_seed(2))
    expected, found = (empty_partials(table.size, shape) for _ in range(2))
    for partials, number in ((expected, None), (found, num_programs)):
        paged_attention(
            query, store.keys, store.values, 0, loaded, partials, TILE, scale=1.0, num_programs=number
        )
    assert not expected.output.isnan().any()
    assert all(torch.equal(a, b) for a, b in zip(expected, found, strict=True))


def merge_table(partials_of_tokens: list[list[int]], segments: list[int]) -> StepTable:
    """A table of nothing but partial results; `segments` by their ids."""
    ids = np.array([partial for partials in partials_of_tokens for partial in partials], dtype=int)
    first = np.cumsum([0, *(len(partials) for partials in partials_of_tokens)])
    none = np.zeros(len(partials_of_tokens), dtype=int)
    table = PlanTable(np.zeros((0, 7), int), none[:0], none, none, first, ids, np.array(segments)[ids])
    loaded = StepTable(table.size, 16, CPU)
    loaded.load(table)
    return loaded


@pytest.mark.parametrize(
    "partials_of_tokens",
    [[[0]], [[0, 1]], [[1, 0], [2]], [[], [0]], [list(range(8))], [list(range(20)), [20]]],
    ids=str,
)
def test_merge_of_any_number_of_partials(partials_of_tokens):
    torch.manual_seed(0)
    partials = Partials(torch.randn(21, 2, 24), torch.randn(21, 2) * 5, torch.rand(21, 2) + 1)
    ours, twin = torch.full((2, len(partials_of_tokens), 2, 24), torch.nan)
    merge_partials(partials, merge_table(partials_of_tokens, [i // 3 for i in range(21)]), ours)
    merge_partials_twin(partials, partials_of_tokens, twin)
    torch.testing.assert_close(ours, twin, atol=1e-6, rtol=1e-5)


def test_merge_multiplies_by_constant_scales():
    torch.manual_seed(0)
    partials = Partials(torch.randn(2, 6, 24), torch.randn(2, 6), torch.rand(2, 6) + 1)
    scale, plain, scaled = torch.rand(2, 24), *torch.full((2, 1, 6, 24), torch.nan)
    table = merge_table([[0, 1]], [0, 0])
    merge_partials(partials, table, plain)
    merge_partials(partials, table, scaled, scale)
    torch.testing.assert_close(scaled, plain * scale.repeat_interleave(3, dim=0))


def test_b32_merging_with_empty_partials_changes_no_bit_and_makes_no_nan():
    """In one segment or several; the last token's partials are all empty: so is the result."""
    torch.manual_seed(0)
    partials = Partials(torch.zeros(6, 2, 24), torch.full((6, 2), -torch.inf), torch.zeros(6, 2))
    partials.output[0], partials.peak[0], partials.total[0] = torch.randn(2, 24), torch.randn(2), 1.25
    for segments in ([0] * 6, [0, 1, 2, 3, 4, 5], [1, 0, 1, 2, 3, 4]):
        alone, first, last, none = (torch.full((1, 2, 24), torch.nan) for _ in range(4))
        merge_partials(partials, merge_table([[0]], segments), alone)
        merge_partials(partials, merge_table([[0, 1, 2]], segments), first)
        merge_partials(partials, merge_table([[1, 2, 3, 0]], segments), last)
        merge_partials(partials, merge_table([[1, 2, 3]], segments), none)
        assert torch.equal(alone, first)
        assert torch.equal(alone, last)
        assert not none.any()
        torch.testing.assert_close(alone[0], partials.output[0] / 1.25)


@pytest.mark.parametrize("order", LayoutOrder)
@pytest.mark.parametrize("kv_format", FORMATS, ids=name_of)
def test_rows_are_written_where_they_belong_and_nowhere_else(kv_format, order):
    """The same bits as torch writes; a row without a slot goes nowhere."""
    torch.manual_seed(0)
    shape = AttentionShape(num_layers=2, num_query_heads=6, num_kv_heads=3, head_dim=24)
    ours, twin = (make_store(shape, 4, 4, kv_format, order=order) for _ in range(2))
    qkv = torch.randn(4, 12, 24) * torch.tensor([1e-9, 1.0, 300.0, 1.0])[:, None, None]
    qkv[1, 7, 3:] = 0
    key, value = qkv[:, 6:9], qkv[:, 9:]  # as the decoder has it: heads of one tensor, so strides differ
    slots = torch.tensor([5, 0, 14, NO_SLOT], dtype=torch.int32)
    write_rows(ours.keys, 1, slots, key)
    write_rows(ours.values, 1, slots, value)
    twin.write(1, slots[:3].long(), key[:3], value[:3])
    assert_same_pool(ours, twin)
    assert twin.keys.rows.any()


def test_a_row_that_is_not_finite_stays_visible():
    for kv_format in FORMATS:
        if kv_format.keys.has_fixed_scales:
            continue
        store = make_store(shape_of(1, 1, 16), 1, 4, kv_format)
        for slot, number in enumerate((torch.nan, torch.inf, -torch.inf)):
            row = torch.ones(1, 1, 16)
            row[0, 0, 5] = number
            write_rows(store.keys, 0, torch.tensor([slot], dtype=torch.int32), row)
        assert not store.keys.read(0, torch.arange(3))[..., 5].isfinite().any()
        assert store.keys.read(0, torch.tensor([3])).isfinite().all()


def assert_same_pool(ours: KvStore, twin: KvStore) -> None:
    for a, b in ((ours.keys, twin.keys), (ours.values, twin.values)):
        for stored, expected in zip(a.tensors(), b.tensors(), strict=True):
            if stored.dtype == torch.bfloat16:  # the interpreter cuts where a GPU rounds
                torch.testing.assert_close(stored, expected, atol=0, rtol=2**-7)
            else:
                assert torch.equal(stored, expected)


@pytest.mark.parametrize("order", LayoutOrder)
@pytest.mark.parametrize("kv_format", FORMATS[:4], ids=name_of)
@pytest.mark.parametrize("block_size", [1, 8])
def test_block_copies_move_the_named_rows_in_every_layer(block_size, kv_format, order):
    torch.manual_seed(0)
    ours, twin = (make_store(shape_of(2, 1, 20, 3), 6, block_size, kv_format, order=order) for _ in range(2))
    for layer in range(3):
        rows = torch.randn(2, 6 * block_size, 2, 20)
        for store in (ours, twin):
            store.write(layer, torch.arange(6 * block_size), *rows)
    copies = [BlockCopy(0, 5, 1), BlockCopy(2, 1, block_size), BlockCopy(0, 4, block_size)]
    for store, copy in ((ours, copy_blocks), (twin, copy_blocks_twin)):
        copy([*store.keys.tensors(), *store.values.tensors()], copies, block_size)
    assert_same_pool(ours, twin)


def test_offsets_pass_32_bits(tmp_path):
    """A slot stride so large that block 1 starts behind element 2**31. The pool is a sparse file."""
    stride = 2**27 + 16  # elements between slots; a block has 16
    flat = torch.from_file(str(tmp_path / "pool"), shared=True, size=17 * stride, dtype=torch.float16)
    store = make_store(shape_of(1, 1, 16, 1), 2, 16, FP16)
    for pool in (store.keys, store.values):
        pool.rows = flat.as_strided((1, 17, 1, 16), (17 * stride, stride, 16, 1))
    write_rows(store.keys, 0, torch.tensor([16], dtype=torch.int32), torch.arange(16.0).view(1, 1, 16))
    assert flat[16 * stride : 16 * stride + 16].tolist() == list(range(16))
    plan = plan_of([0], [item([1], 0, 1, block_size=16)], 16)
    table = tabulate(plan, group_size=1, tile_queries=16)
    loaded = StepTable(table.size, 16, CPU)
    loaded.load(table)
    partials = Partials.empty(1, 1, 16, "cpu")
    paged_attention(torch.zeros(1, 1, 16), store.keys, store.values, 0, loaded, partials, TILE, scale=1.0)
    assert torch.equal(partials.output[0, 0], torch.arange(16.0))


def test_the_table_lists_partials_in_position_order():
    prefix = list(range(40))
    spans = [SequenceSpan([*prefix, 50 + i], 40 * 16 + 3, 1 + i) for i in range(3)]
    plan = plan_attention(spans, 16)
    table = tabulate(plan, group_size=3, tile_queries=16)
    position_of = {}
    for task in table.tasks.tolist():
        for token in range(task[6] // 3):
            position_of[task[4] + token] = task[1]
    assert sorted(position_of) == list(range(table.size.num_partials))
    for begin, end in pairwise(table.first_partials.tolist()):
        positions = [position_of[i] for i in table.partial_ids[begin:end].tolist()]
        assert positions == sorted(set(positions))
        assert table.segments[begin:end].tolist() == [position // 512 for position in positions]
    lengths = table.tasks[:, 2].tolist()
    assert lengths == sorted(lengths, reverse=True)


def test_a_table_takes_any_plan_that_fits_and_fills_up_with_nothing():
    plans = [PLANS["a prompt of its own"], PLANS["a partial last block"]]
    tables = [tabulate(plan, group_size=3, tile_queries=16) for plan in plans]
    loaded = StepTable(tables[0].size, 16, CPU)
    addresses = [tensor.data_ptr() for tensor in (loaded.tasks, loaded.positions, loaded.slots)]
    for table in (*tables, tables[0]):
        loaded.load(table)
        num_tokens, num_tasks, num_block_ids, num_partials = table.size
        assert loaded.num_tasks.tolist() == [num_tasks]
        assert loaded.tasks[:num_tasks].tolist() == table.tasks.tolist()
        assert loaded.block_ids[:num_block_ids].tolist() == table.block_ids.tolist()
        assert loaded.slots.tolist() == table.slots.tolist() + [NO_SLOT] * (40 - num_tokens)
        assert loaded.first_partials[num_tokens:].tolist() == [num_partials] * (41 - num_tokens)
    assert addresses == [tensor.data_ptr() for tensor in (loaded.tasks, loaded.positions, loaded.slots)]
    with pytest.raises(AssertionError, match="does not fit"):
        StepTable(tables[1].size, 16, CPU).load(tables[0])
