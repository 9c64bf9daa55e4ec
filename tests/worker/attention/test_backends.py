"""Every backend equals dense float64 attention on every shape, and reads nothing it must not.

The native kernel is among them where there is a compiler to build it.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.spans import steps

from prefixcache_worker.attention import cpu
from prefixcache_worker.attention.cpu import CpuAttention, attend_dense, attend_flash, merge_partials
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.native import NativeAttention, max_head_dim, prepare_native_attention
from prefixcache_worker.attention.plan import SequenceSpan, plan_attention
from prefixcache_worker.attention.reference import ReferenceAttention
from prefixcache_worker.model.model import AttentionShape
from prefixcache_worker.native_library import NativeLibraryError

try:
    prepare_native_attention()
except NativeLibraryError:
    BACKENDS = [CpuAttention]
else:
    BACKENDS = [CpuAttention, NativeAttention]


def run_both(backend, spans, block_size, shape, *, share=True, order=LayoutOrder.LAYER_FIRST, seed=0):
    """(backend's, reference) outputs of one step over a pool whose unwritten rows are NaN."""
    torch.manual_seed(seed)
    plan = plan_attention(spans, block_size, share=share)
    num_blocks = 1 + max(block_id for span in spans for block_id in span.block_table)
    store = KvStore(shape, num_blocks=num_blocks, block_size=block_size, order=order)
    store.fill_blocks(range(num_blocks), torch.nan)
    for span in spans:
        slots = [span.block_table[p // block_size] * block_size + p % block_size for p in range(span.start)]
        for pool in (store.keys.rows, store.values.rows):
            pool[:, slots] = torch.randn(shape.num_layers, len(slots), shape.num_kv_heads, shape.head_dim)
    n, dim = plan.num_tokens, shape.head_dim
    query = torch.randn(n, shape.num_query_heads, dim)
    key, value = torch.randn(n, shape.num_kv_heads, dim), torch.randn(n, shape.num_kv_heads, dim)
    both = backend(plan, store), ReferenceAttention(plan, store)
    return [attention.attend(shape.num_layers - 1, query, key, value) for attention in both]


def shape_of(num_kv_heads=2, group=3, head_dim=8, num_layers=2):
    return AttentionShape(
        num_layers=num_layers,
        num_query_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
    )


@settings(deadline=None)
@given(
    st.sampled_from(BACKENDS),
    steps(),
    st.booleans(),
    st.sampled_from(list(LayoutOrder)),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 3, 5, 7]),
)
def test_random_steps_equal_the_reference(backend, step, share, order, num_kv_heads, group):
    spans, block_size = step
    ours, reference = run_both(
        backend, spans, block_size, shape_of(num_kv_heads, group), share=share, order=order
    )
    torch.testing.assert_close(ours, reference, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 8, 16, 64])
@pytest.mark.parametrize("head_dim", [5, 64, 80, 96, 128])
def test_lengths_around_a_block_border(backend, block_size, head_dim):
    lengths = [1, block_size - 1, block_size, block_size + 1, 2 * block_size, 5 * block_size - 1]
    ids = iter(range(1000))
    spans = [
        SequenceSpan([next(ids) for _ in range(-(-length // block_size))], length - 1, 1)
        for length in lengths
        if length > 0
    ]
    ours, reference = run_both(backend, spans, block_size, shape_of(head_dim=head_dim))
    torch.testing.assert_close(ours, reference, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("num_tokens", [1, 40, 100])
def test_a_long_shared_prefix_with_scattered_blocks(backend, num_tokens):
    prefix = torch.randperm(64).tolist()
    spans = [
        SequenceSpan([*prefix, *range(64 + 8 * i, 72 + 8 * i)], 64 * 16 + i, num_tokens) for i in range(5)
    ]
    assert plan_attention(spans, 16).num_levels > 1
    ours, reference = run_both(backend, spans, 16, shape_of(3, 3, 64))
    torch.testing.assert_close(ours, reference, atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_the_fallback_equals_the_fused_operator(causal):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 16)
    mask = None if causal else torch.zeros(2, 1, 1, 5).index_fill_(3, torch.tensor([4]), -torch.inf)
    fused = attend_flash(query, key, value, causal=causal, mask=mask)
    plain = attend_dense(query, key, value, causal=causal, mask=mask)
    torch.testing.assert_close(fused, plain, atol=1e-6, rtol=1e-6)


def test_the_backend_is_right_without_the_fused_operator(monkeypatch):
    monkeypatch.setattr(cpu, "HAS_FLASH", False)
    spans = [SequenceSpan([*range(32), 40 + i], 32 * 16, 3) for i in range(3)]
    ours, reference = run_both(CpuAttention, spans, 16, shape_of())
    torch.testing.assert_close(ours, reference, atol=2e-5, rtol=1e-5)


def test_b32_an_empty_partial_changes_nothing():
    """Merging with (0, -inf) gives the other part bit for bit."""
    torch.manual_seed(0)
    outputs, lses = torch.randn(1, 4, 8), torch.randn(1, 4)
    empty = torch.zeros(2, 4, 8), torch.full((2, 4), -torch.inf)
    merged = merge_partials(torch.cat([outputs, empty[0]]), torch.cat([lses, empty[1]]))
    assert torch.equal(merged, outputs[0])


def test_everything_is_made_where_the_pool_is():
    """On torch's meta device, which refuses to mix with any other: what is missed here fails on a GPU."""
    shape = shape_of()
    spans = [SequenceSpan([*range(32), 40 + i], 32 * 16, 1 + i) for i in range(3)]
    store = KvStore(shape, num_blocks=64, block_size=16, device="meta")
    plan = plan_attention(spans, 16)
    query = torch.empty(plan.num_tokens, shape.num_query_heads, shape.head_dim, device="meta")
    rows = torch.empty(plan.num_tokens, shape.num_kv_heads, shape.head_dim, device="meta")
    output = CpuAttention(plan, store).attend(0, query, rows, rows)
    assert output.shape == query.shape
    assert output.device.type == "meta"


@pytest.mark.parametrize("backend", BACKENDS)
def test_extreme_scores_stay_finite(backend):
    """Scores of +-1e4 and more: the softmax is one row's, and nothing overflows."""
    shape = shape_of(1, 3, 64)
    spans = [SequenceSpan([*range(40), 50 + i], 40 * 16, 1 + 5 * i) for i in range(3)]
    plan = plan_attention(spans, 16)
    store = KvStore(shape, num_blocks=64, block_size=16)
    torch.manual_seed(0)
    store.keys.rows.normal_().mul_(200)
    store.values.rows.normal_()
    rows = torch.randn(2, plan.num_tokens, 1, 64) * 200
    query = torch.randn(plan.num_tokens, 3, 64) * 200
    both = backend(plan, store), ReferenceAttention(plan, store)
    ours, reference = (attention.attend(0, query, *rows) for attention in both)
    assert ours.isfinite().all()
    torch.testing.assert_close(ours, reference, atol=2e-2, rtol=1e-4)


@pytest.mark.parametrize("backend", BACKENDS)
def test_where_the_blocks_lie_changes_no_bit(backend):
    """The same step over other block ids gives the same bits."""
    shape = shape_of(3, 3, 64)
    torch.manual_seed(0)
    content = torch.randn(2, 40, 16, 3, 64)
    query, key, value = torch.randn(5, 9, 64), torch.randn(5, 3, 64), torch.randn(5, 3, 64)
    results = []
    for ids in (list(range(40)), torch.randperm(40).tolist()):
        store = KvStore(shape, num_blocks=40, block_size=16)
        for block, block_id in enumerate(ids):
            store.keys.rows[0, block_id * 16 : (block_id + 1) * 16] = content[0, block]
            store.values.rows[0, block_id * 16 : (block_id + 1) * 16] = content[1, block]
        spans = [SequenceSpan([*ids[:35], ids[35 + i]], 35 * 16 + 3, 1) for i in range(5)]
        plan = plan_attention(spans, 16)
        order = torch.tensor(plan.order)
        output = backend(plan, store).attend(0, query[order], key[order], value[order])
        results.append(output[order.argsort()])
    assert torch.equal(*results)


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_the_largest_head_fits_the_kernel(backend):
    spans = [SequenceSpan([0, 1], 20, 5), SequenceSpan([2], 3, 1)]
    ours, reference = run_both(backend, spans, 16, shape_of(1, 2, max_head_dim()))
    torch.testing.assert_close(ours, reference, atol=2e-5, rtol=1e-5)
