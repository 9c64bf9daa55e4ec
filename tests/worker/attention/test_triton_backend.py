"""The Triton backend equals dense float64 attention on whole steps, in Triton's interpreter."""

import sys
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.attention_steps import (
    BF16,
    FP16,
    FP32,
    make_store,
    name_of,
    outputs_by_token,
    run_both,
    shape_of,
    tolerance,
)
from support.hand_engine import HandEngine, reference, stream
from support.kv_formats import FORMATS
from support.spans import steps
from triton.runtime import interpreter

from prefixcache_worker.attention.backend import choose_backend
from prefixcache_worker.attention.cpu import CpuAttention
from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.attention.triton import backend
from prefixcache_worker.attention.triton.backend import TritonAttention
from prefixcache_worker.attention.triton.tile import TileShape
from prefixcache_worker.errors import ConfigError
from prefixcache_worker.model.model import AttentionWindow

WINDOWS = (None, AttentionWindow(7), AttentionWindow(20, 3))
INT8, INT4 = (KvFormat(dtype, KvScales.TOKEN_HEAD) for dtype in (KvDtype.INT8, KvDtype.INT4))


@settings(deadline=None, max_examples=8)
@given(
    steps(max_sequences=4, max_blocks=3),
    st.booleans(),
    st.sampled_from(WINDOWS),
    st.sampled_from(list(LayoutOrder)),
    st.sampled_from([1, 3, 5, 7]),
    st.sampled_from(FORMATS),
)
def test_random_steps_equal_the_reference(step, share, window, order, group_size, kv_format):
    spans, block_size = step
    ours, expected = run_both(
        TritonAttention,
        spans,
        block_size,
        shape_of(2, group_size),
        share=share,
        window=window,
        order=order,
        kv_format=kv_format,
    )
    torch.testing.assert_close(ours, expected, **tolerance(kv_format))


@pytest.mark.parametrize("query_dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("kv_format", [FP16, BF16, INT8, INT4], ids=name_of)
def test_half_precision_queries(kv_format, query_dtype):
    spans = [SequenceSpan([*range(5), 8 + i], 5 * 16 + i, 1 + 4 * i) for i in range(3)]
    ours, expected = run_both(
        TritonAttention, spans, 16, shape_of(1, 3, 16), kv_format=kv_format, query_dtype=query_dtype
    )
    assert ours.dtype == query_dtype
    torch.testing.assert_close(ours, expected, **tolerance(kv_format, query_dtype))


@pytest.mark.parametrize("block_size", [1, 8, 32, 64, 128])
def test_b34_lengths_around_a_block_border(block_size):
    ids = iter(range(1000))
    lengths = {1, block_size - 1, block_size, block_size + 1, 2 * block_size + 1, 5 * block_size - 1} - {0}
    spans = [
        SequenceSpan([next(ids) for _ in range(-(-length // block_size))], length - 1, 1)
        for length in sorted(lengths)
    ]
    ours, expected = run_both(TritonAttention, spans, block_size, shape_of(1, 2, 16))
    torch.testing.assert_close(ours, expected, **tolerance(FP32))


@pytest.mark.parametrize("num_tokens", [1, 20])
def test_two_groups_on_two_levels_of_scattered_blocks(num_tokens):
    """A base of 8 blocks under all, 8 more under each half, then tails."""
    ids = torch.randperm(40).tolist()
    base, middles, tails = ids[:8], (ids[8:16], ids[16:24]), iter(ids[24:])
    spans = [
        SequenceSpan([*base, *middle, next(tails), next(tails), next(tails)], 16 * 16 + 5, num_tokens)
        for middle in middles
        for _ in range(2)
    ]
    plan = plan_attention(spans, 16)
    assert plan.num_rows_read == 3 * 8 * 16 + sum(span.length - 16 * 16 for span in spans)
    ours, expected = run_both(TritonAttention, spans, 16, shape_of(1, 3, 16))
    torch.testing.assert_close(ours, expected, **tolerance(FP32))


@pytest.mark.parametrize("kv_format", [FP32, FP16, INT8, INT4], ids=name_of)
@pytest.mark.parametrize("window", [None, AttentionWindow(100), AttentionWindow(80, 4)])
def test_b13_what_nobody_sees_may_be_nan(kv_format, window):
    """Shared and private rows, windows that end inside the shared run; all other rows are NaN."""
    spans = [
        SequenceSpan([*range(12), 20 + 3 * i, 21 + 3 * i], 12 * 16 + 3 + i, n) for i, n in enumerate((1, 9))
    ]
    ours, expected = run_both(
        TritonAttention, spans, 16, shape_of(1, 3, 16), window=window, kv_format=kv_format
    )
    assert ours.isfinite().all()
    torch.testing.assert_close(ours, expected, **tolerance(kv_format))


def test_b35_slots_need_not_be_consecutive():
    """Blocks 7, 2, 9, 4: each new token is written to, and read from, where its table says."""
    spans = [SequenceSpan([7, 2, 9, 4], 2 * 8, 14)]
    ours, expected = run_both(TritonAttention, spans, 8, shape_of(1, 2, 16))
    torch.testing.assert_close(ours, expected, **tolerance(FP32))


@pytest.fixture
def products_row_by_row(monkeypatch):
    """Matrix units treat a row the same wherever in the tile it stands. The interpreter's BLAS does not."""

    def create_dot(self, left, right, start, input_precision, max_num_imprecise_acc):
        products = left.data[:, :, None].astype(np.float32) * right.data[None].astype(np.float32)
        return interpreter.TensorHandle(products.sum(axis=1) + start.data, start.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", create_dot)


@pytest.mark.usefixtures("products_row_by_row")
@pytest.mark.parametrize("window", [None, AttentionWindow(90, 4)])
@pytest.mark.parametrize("kv_format", [FP32, INT8], ids=name_of)
def test_who_shares_and_where_blocks_lie_changes_no_bit(kv_format, window):
    """Shared or not, alone or together, in any order, over any block ids."""
    torch.manual_seed(0)
    expected = outputs_by_token(range(50), [0, 1, 2], share=True, kv_format=kv_format, window=window)
    for block_ids, sequences, share in (
        (torch.randperm(50), [0, 1, 2], True),
        (range(50), [2, 0, 1], False),
        (torch.randperm(50), [1], True),
    ):
        outputs = outputs_by_token(block_ids, sequences, share=share, kv_format=kv_format, window=window)
        assert torch.equal(outputs[sequences], expected[sequences]), (sequences, share)


@pytest.mark.usefixtures("products_row_by_row")
def test_a_prefill_has_the_bits_of_its_tokens_decoded_one_by_one():
    shape, tile = shape_of(1, 3, 16), TileShape(16, 32, num_warps=4, num_stages=2)
    store = make_store(shape, 8, 16, FP32)
    rows = torch.randn(100, 5, 16, generator=torch.Generator().manual_seed(0))
    query, key, value = rows.split((3, 1, 1), dim=1)
    outputs = []
    for cuts in ([0, 100], [0, 37, 64, 98, 99, 100]):
        parts = []
        for begin, end in pairwise(cuts):
            plan = plan_attention([SequenceSpan([7, 2, 6, 1, 0, 3, 4], begin, end - begin)], 16)
            attention = TritonAttention(plan, store, tile=tile)
            parts.append(attention.attend(0, query[begin:end], key[begin:end], value[begin:end]))
        outputs.append(torch.cat(parts))
    assert torch.equal(*outputs)


def test_the_engine_answers_as_without_it():
    """Prefill, a shared prefix, copy-on-write and decode, all through the kernels."""
    engine = HandEngine(backend="triton", max_batch_tokens=64)
    prompts = [stream("a", 40), stream("a", 40), stream("a", 36) + stream("b", 5)]
    assert [engine.generate(prompt, 3) for prompt in prompts] == [reference(p, 3) for p in prompts]
    assert engine.num_cached("r2") == 39
    together = [engine.add(prompt, 3) for prompt in prompts]
    engine.run()
    assert [engine.tokens(request_id) for request_id in together] == [reference(p, 3) for p in prompts]


def pool(**options):
    return KvStore(shape_of(), num_blocks=2, block_size=16, **options)


def test_it_is_taken_when_asked_for():
    assert choose_backend("triton", pool()) is TritonAttention


def test_it_needs_a_gpu_unless_interpreted(monkeypatch):
    monkeypatch.setattr(backend, "IS_INTERPRETED", False)
    with pytest.raises(ConfigError, match=r"--attention triton: it takes a pool on cuda, not on cpu; or use"):
        choose_backend("triton", pool())


def test_it_refuses_heads_that_do_not_fit():
    with pytest.raises(ConfigError, match=r"heads of up to 256 elements, not 512"):
        choose_backend("triton", KvStore(shape_of(head_dim=512), num_blocks=2, block_size=16))


def test_a_machine_without_triton_is_told_so(monkeypatch):
    monkeypatch.setitem(sys.modules, "prefixcache_worker.attention.triton.backend", None)
    with pytest.raises(ConfigError, match=r"--attention triton: .*; install triton"):
        choose_backend("triton", pool())
    assert choose_backend("auto", pool(device="meta")) is CpuAttention
