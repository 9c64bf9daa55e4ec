"""Every backend equals dense float64 attention on every shape, and reads nothing it must not.

The native kernel is among them where there is a compiler to build it.
"""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_steps import run_both, shape_of
from support.kv_formats import FORMATS
from support.spans import steps, windows

from prefixcache_worker.attention import cpu
from prefixcache_worker.attention.cpu import CpuAttention, attend_dense, attend_flash, merge_partials
from prefixcache_worker.attention.kv_format import KvDtype, KvFormat
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.native import NativeAttention, max_head_dim, prepare_native_attention
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.attention.reference import ReferenceAttention
from prefixcache_worker.model.model import AttentionWindow
from prefixcache_worker.native_library import NativeLibraryError

try:
    prepare_native_attention()
except NativeLibraryError:
    BACKENDS = [CpuAttention]
else:
    BACKENDS = [CpuAttention, NativeAttention]


def assert_right(both):
    torch.testing.assert_close(*both, atol=2e-5, rtol=1e-5)


@settings(deadline=None)
@given(
    st.sampled_from(BACKENDS),
    steps(),
    windows(),
    st.booleans(),
    st.sampled_from(list(LayoutOrder)),
    st.sampled_from(FORMATS),
    st.sampled_from([1, 2]),
    st.sampled_from([1, 3, 5, 7, 8]),
    st.sampled_from([None, 0.3]),
)
def test_random_steps_equal_the_reference(
    backend, step, window, share, order, kv_format, num_kv_heads, group, score_scale
):
    spans, block_size = step
    shape = shape_of(num_kv_heads, group, score_scale=score_scale)
    assert_right(
        run_both(
            backend, spans, block_size, shape, window=window, share=share, order=order, kv_format=kv_format
        )
    )


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("block_size", [1, 8, 16, 64])
@pytest.mark.parametrize("head_dim", [5, 64, 80, 96, 128])
def test_b34_lengths_around_a_block_border(backend, block_size, head_dim):
    lengths = [1, block_size - 1, block_size, block_size + 1, 2 * block_size, 2 * block_size + 1]
    ids = iter(range(1000))
    spans = [
        SequenceSpan([next(ids) for _ in range(-(-length // block_size))], length - 1, 1)
        for length in [*lengths, 5 * block_size - 1]
        if length > 0
    ]
    assert_right(run_both(backend, spans, block_size, shape_of(head_dim=head_dim)))


@pytest.mark.parametrize("backend", BACKENDS)
def test_b34_a_query_of_zeros_gives_the_mean_of_the_values(backend):
    shape = shape_of(1, 4, 64)
    plan = plan_attention([SequenceSpan(list(range(20)), 300, 1)], 16)
    store = KvStore(shape, num_blocks=20, block_size=16)
    for pool in (store.keys, store.values):
        pool.rows.normal_()
    output = backend(plan, store).attend(0, torch.zeros(1, 4, 64), *torch.randn(2, 1, 1, 64))
    mean = store.values.read(0, slice(0, 301))[:, 0].double().mean(0)
    torch.testing.assert_close(output[0].double(), mean.expand(4, -1), atol=1e-6, rtol=0)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("group", [1, 3, 5, 7, 8])
@pytest.mark.parametrize("num_tokens", [1, 40, 100])
def test_a_long_shared_prefix_with_scattered_blocks(backend, group, num_tokens):
    prefix = torch.randperm(64).tolist()
    spans = [
        SequenceSpan([*prefix, *range(64 + 8 * i, 72 + 8 * i)], 64 * 16 + i, num_tokens) for i in range(5)
    ]
    assert plan_attention(spans, 16).num_levels > 1
    assert_right(run_both(backend, spans, 16, shape_of(3, group, 64)))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("window", [AttentionWindow(300), AttentionWindow(300, 4), AttentionWindow(700, 100)])
@pytest.mark.parametrize("num_tokens", [1, 150])
def test_windows_that_end_inside_a_shared_run(backend, window, num_tokens):
    spans = [
        SequenceSpan([*range(64), *range(64 + 20 * i, 84 + 20 * i)], 1030 + 40 * i, num_tokens)
        for i in range(4)
    ]
    assert any(item.num_sequences > 1 for item in plan_attention(spans, 16, window=window).items)
    assert_right(run_both(backend, spans, 16, shape_of(2, 3, 64), window=window))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("poison", [torch.nan, torch.inf])
@pytest.mark.parametrize("window", [None, AttentionWindow(10, 2)])
@pytest.mark.parametrize("kv_format", FORMATS, ids=lambda kv_format: kv_format.name)
def test_b13_nothing_that_was_never_written_gets_in(backend, poison, window, kv_format):
    spans = [SequenceSpan([3 * i, 3 * i + 1, 3 * i + 2], n, 1) for i, n in enumerate((1, 15, 16, 17, 31, 33))]
    spans.append(SequenceSpan([18, 19], 0, 20))
    both = run_both(backend, spans, 16, shape_of(), window=window, kv_format=kv_format, poison=poison)
    assert both.ours.isfinite().all()
    assert_right(both)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rows_behind_the_window_may_hold_anything(backend):
    """Blocks out of every window's sight may be somebody else's by now."""
    shape, window = shape_of(1, 3, 64), AttentionWindow(100, 4)
    plan = plan_attention([SequenceSpan(list(range(64)), 1000, 3)], 16, window=window)
    outputs = []
    for poison in (0.0, torch.nan):
        torch.manual_seed(0)
        store = KvStore(shape, num_blocks=64, block_size=16)
        for pool in (store.keys, store.values):
            pool.rows.normal_()
        store.fill_blocks(range(1, 901 // 16), poison)
        query, rows = torch.randn(3, 3, 64), torch.randn(2, 3, 1, 64)
        outputs.append(backend(plan, store).attend(0, query, *rows))
    assert outputs[1].isfinite().all()
    assert torch.equal(*outputs)


@pytest.mark.parametrize("masked", [False, True])
def test_the_fallback_equals_the_fused_operator(masked):
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 2, 3, 5, 16)
    mask = torch.zeros(2, 1, 5, 5).index_fill_(3, torch.tensor([4]), -torch.inf) if masked else None
    fused = attend_flash(query, key, value, scale=0.3, mask=mask)
    plain = attend_dense(query, key, value, scale=0.3, mask=mask)
    torch.testing.assert_close(fused, plain, atol=1e-6, rtol=1e-6)


def test_the_backend_is_right_without_the_fused_operator(monkeypatch):
    monkeypatch.setattr(cpu, "HAS_FLASH", False)
    spans = [SequenceSpan([*range(32), 40 + i], 32 * 16, 3) for i in range(3)]
    assert_right(run_both(CpuAttention, spans, 16, shape_of()))


def test_b32_an_empty_partial_changes_nothing():
    """Merging with (0, -inf) gives the other part bit for bit, on either side."""
    torch.manual_seed(0)
    some = torch.randn(1, 4, 8), torch.randn(1, 4)
    empty = torch.zeros(1, 4, 8), torch.full((1, 4), -torch.inf)
    for parts in ((some, empty), (empty, some), (empty, some, empty), (empty, empty, some)):
        merged = merge_partials(*map(torch.cat, zip(*parts, strict=True)))
        assert torch.equal(merged.output, some[0][0])
        assert torch.equal(merged.lse, some[1][0])
    for parts in ((empty, empty), (empty, empty, empty)):
        merged = merge_partials(*map(torch.cat, zip(*parts, strict=True)))
        assert torch.equal(merged.output, empty[0][0])
        assert torch.equal(merged.lse, empty[1][0])


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


@pytest.mark.parametrize("bad", [torch.nan, torch.inf])
@pytest.mark.parametrize("num_tokens", [1, 4, 24])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_query_that_is_not_finite_stays_visible_and_harms_no_other(backend, num_tokens, bad):
    """Decoded, among few and among many queries; the rows end inside a vector, a chunk and a segment."""
    shape = shape_of(2, 3, 16)
    spans = [SequenceSpan([*range(4), 4 + i, 7 + i], 85 - num_tokens, num_tokens) for i in range(3)]
    plan = plan_attention(spans, 16)
    store = KvStore(shape, num_blocks=10, block_size=16)
    torch.manual_seed(0)
    store.keys.rows.normal_()
    store.values.rows.normal_()
    rows = torch.randn(2, plan.num_tokens, 2, 16)
    query = torch.randn(plan.num_tokens, 6, 16)
    expected = ReferenceAttention(plan, store).attend(0, query, *rows)
    query[num_tokens] = bad  # of the second sequence
    output = backend(plan, store).attend(0, query, *rows)
    assert output[num_tokens].isnan().all()
    others = torch.arange(plan.num_tokens) != num_tokens
    torch.testing.assert_close(output[others], expected[others], atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("backend", BACKENDS[1:])
@pytest.mark.parametrize("head_dim", [64, 80, 96, 128])
@pytest.mark.parametrize("count", [1, 5, 20])
def test_products_of_bf16_err_no_more_than_torch_s_own(backend, head_dim, count):
    """With bf16 KV, a machine that multiplies bf16 pairs rounds queries and weights too."""
    shape, length = shape_of(2, 3, head_dim), 700
    store = KvStore(shape, num_blocks=44, block_size=16, kv_format=KvFormat(KvDtype.BF16))
    torch.manual_seed(0)
    store.write(0, torch.arange(704), *torch.randn(2, 704, 2, head_dim))
    spans = [SequenceSpan(list(range(44)), length - count, count)]
    plan = plan_attention(spans, 16)
    query, rows = torch.randn(count, 6, head_dim) * 2, torch.randn(2, count, 2, head_dim)
    ours, reference = (kind(plan, store).attend(0, query, *rows) for kind in (backend, ReferenceAttention))
    columns = (query, store.keys.read(0, slice(0, length)), store.values.read(0, slice(0, length)))
    torchs = torch.nn.functional.scaled_dot_product_attention(
        *(column.bfloat16().transpose(0, 1)[None] for column in columns),
        attn_mask=torch.arange(length) <= torch.arange(length - count, length)[:, None],
        enable_gqa=True,
    )
    torchs_error = (torchs[0].transpose(0, 1).float() - reference).abs().max()
    torch.testing.assert_close(ours, reference, atol=1.5e-2, rtol=1e-2)
    assert (ours - reference).abs().max() <= 1.5 * torchs_error


@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_the_largest_head_fits_the_kernel(backend):
    spans = [SequenceSpan([0, 1], 20, 5), SequenceSpan([2], 3, 1)]
    assert_right(run_both(backend, spans, 16, shape_of(1, 2, max_head_dim())))
