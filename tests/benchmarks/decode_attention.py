"""Rows of `decode.py` about the attention of a step alone: all layers, one after the other, so that KV rows
come from memory as they do in a step. Shapes are the default model's."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch
from machine import seconds_of
from report import Row

from prefixcache_worker.attention.kv_format import FP32, KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.native import NativeAttention
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.model.model import AttentionShape

SHAPE = AttentionShape(num_layers=30, num_query_heads=9, num_kv_heads=3, head_dim=64)
BLOCK_SIZE = 16
TAIL = 64
"""Rows of each sequence behind the shared prefix."""
SHARED_BARS = {(2048, 16): 1.7, (8192, 16): 2.8}
"""(prefix, sequences) -> how many times as fast shared reads have to be"""
FORMATS = (
    KvFormat(KvDtype.BF16),
    KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD),
    KvFormat(KvDtype.INT4, KvScales.TOKEN_HEAD),
)


def make_store(
    prefix: int, count: int, kv_format: KvFormat = FP32, order: LayoutOrder | None = None
) -> KvStore:
    """A pool that holds a prefix and the tails of `count` sequences, filled with random rows."""
    num_blocks = (prefix + count * TAIL) // BLOCK_SIZE
    store = KvStore(
        SHAPE,
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        kv_format=kv_format,
        order=order or LayoutOrder.LAYER_FIRST,
    )
    rows = torch.randn(store.layout.num_slots, SHAPE.num_kv_heads, SHAPE.head_dim)
    for layer in range(SHAPE.num_layers):
        store.write(layer, torch.arange(store.layout.num_slots), rows, rows)
    return store


def make_plan(prefix: int, count: int, *, share: bool = True) -> AttentionPlan:
    """All sequences decode the last row of their tails."""
    shared, tail = range(prefix // BLOCK_SIZE), TAIL // BLOCK_SIZE
    spans = [
        SequenceSpan(
            [*shared, *range(len(shared) + i * tail, len(shared) + (i + 1) * tail)], prefix + TAIL - 1, 1
        )
        for i in range(count)
    ]
    return plan_attention(spans, BLOCK_SIZE, share=share)


def attention_of(plan: AttentionPlan, store: KvStore) -> Callable[[], None]:
    """What attends in every layer."""
    attention = NativeAttention(plan, store)
    query = torch.randn(plan.num_tokens, SHAPE.num_query_heads, SHAPE.head_dim)
    rows = torch.randn(plan.num_tokens, SHAPE.num_kv_heads, SHAPE.head_dim)

    def attend() -> None:
        for layer in range(SHAPE.num_layers):
            attention.attend(layer, query, rows, rows)

    return attend


def ratio_row(
    name: str, slow: Callable[[], None], fast: Callable[[], None], rounds: int, bar: float | None
) -> Row:
    """How many times as fast the second is: the two in turn."""
    slow(), fast()
    pairs = [(seconds_of(slow), seconds_of(fast)) for _ in range(rounds)]
    ratios = [a / b for a, b in pairs]
    medians = [statistics.median(column) * 1e3 for column in zip(*pairs, strict=True)]
    return Row(
        name=name,
        value=statistics.median(ratios),
        unit="times as fast",
        spread=f"{min(ratios):.2f} to {max(ratios):.2f}",
        bar=None if bar is None else f">= {bar:g}",
        holds=None if bar is None else statistics.median(ratios) >= bar,
        note=f"{medians[1]:.1f} ms against {medians[0]:.1f} ms",
    )


def shared_rows(rounds: int) -> list[Row]:
    """Shared reads over unshared ones of the same blocks."""
    rows = []
    for (prefix, count), bar in SHARED_BARS.items():
        store = make_store(prefix, count)
        unshared, shared = (attention_of(make_plan(prefix, count, share=s), store) for s in (False, True))
        rows.append(
            ratio_row(f"attention, shared reads, {prefix:,} x {count}", unshared, shared, rounds, bar)
        )
    return rows


def roofline_rows(rounds: int, bandwidth: float, peak: float) -> list[Row]:
    """How near attention comes to what the machine can do."""
    rows = []
    for prefix, count, limit, bar in ((4096, 32, "peak", 0.65), (8192, 1, "bandwidth", 0.7)):
        plan, store = make_plan(prefix, count), make_store(prefix, count)
        attend = attention_of(plan, store)
        attend()
        seconds = [seconds_of(attend) for _ in range(rounds)]
        num_flops = 4 * SHAPE.head_dim * SHAPE.num_query_heads * plan.num_rows_unshared * SHAPE.num_layers
        num_bytes = plan.num_rows_read * store.block_bytes / BLOCK_SIZE
        least = num_flops / peak if limit == "peak" else num_bytes / bandwidth
        shares = [least / each for each in seconds]
        median = statistics.median(seconds)
        rows.append(
            Row(
                name=f"attention, share of the machine's {limit}, {prefix:,} x {count}",
                value=statistics.median(shares),
                unit="of it",
                spread=f"{min(shares):.2f} to {max(shares):.2f}",
                bar=f">= {bar:g}",
                holds=statistics.median(shares) >= bar,
                note=f"{num_flops / median / 1e9:.0f} GFLOP/s, {num_bytes / median / 1e9:.1f} GB/s",
            )
        )
    return rows


def layout_rows(rounds: int) -> list[Row]:
    """S30: the same steps over both layouts of the pool."""
    rows = []
    for prefix, count in ((2048, 16), (8192, 1)):
        plan = make_plan(prefix, count)
        head_first, layer_first = (
            attention_of(plan, make_store(prefix, count, order=order))
            for order in (LayoutOrder.HEAD_FIRST, LayoutOrder.LAYER_FIRST)
        )
        name = f"attention, layer-first over head-first pool, {prefix:,} x {count}"
        rows.append(ratio_row(name, head_first, layer_first, rounds, None))
    return rows


def format_rows(rounds: int) -> list[Row]:
    """The same step over smaller KV formats."""
    rows = []
    for prefix, count in ((4096, 32), (8192, 1)):
        plan = make_plan(prefix, count)
        plain = attention_of(plan, make_store(prefix, count))
        for kv_format in FORMATS:
            other = attention_of(plan, make_store(prefix, count, kv_format))
            name = f"attention, {kv_format.name} over fp32 KV, {prefix:,} x {count}"
            rows.append(ratio_row(name, plain, other, rounds, None))
    return rows
