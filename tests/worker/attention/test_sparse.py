"""Reads of the blocks that matter most: bounds that hold, and choices that follow them."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from prefixcache import BlockCopy
from prefixcache_worker.attention.kv_format import FP32, KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.sparse import SparseAttention, SparseReads
from prefixcache_worker.model.model import AttentionShape

SHAPE = AttentionShape(num_layers=2, num_query_heads=6, num_kv_heads=2, head_dim=8)
BLOCK_SIZE = 4


class Pool:
    """A poisoned pool, its summaries, and sequences whose rows are written in order."""

    def __init__(self, num_blocks: int, kv_format: KvFormat = FP32) -> None:
        self.store = KvStore(
            SHAPE, num_blocks=num_blocks, block_size=BLOCK_SIZE, kv_format=kv_format, with_summaries=True
        )
        self.store.fill_blocks(range(num_blocks), torch.nan)
        self.summaries = self.store.summaries

    def write(self, table: list[int], start: int, end: int, key: torch.Tensor | None = None) -> None:
        slots = torch.tensor(
            [table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(start, end)]
        )
        for layer in range(SHAPE.num_layers):
            rows = torch.randn(2, len(slots), SHAPE.num_kv_heads, SHAPE.head_dim)
            keys = rows[0] if key is None else key
            self.store.write(layer, slots, keys, rows[1])

    def rows(self, layer: int, table: list[int], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        slots = torch.tensor([table[p // BLOCK_SIZE] * BLOCK_SIZE + p % BLOCK_SIZE for p in range(length)])
        return self.store.keys.read(layer, slots), self.store.values.read(layer, slots)


def dense(query, keys, values):
    """[heads, dim] over [rows, kv heads, dim]."""
    group = SHAPE.group_size
    keys, values = (rows.repeat_interleave(group, dim=1).double() for rows in (keys, values))
    weights = (torch.einsum("hd,khd->hk", query.double(), keys) * SHAPE.scale).softmax(-1)
    return torch.einsum("hk,khd->hd", weights, values)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=6), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_no_score_of_a_block_exceeds_its_bound(steps, seed):
    torch.manual_seed(seed)
    pool, table, start = Pool(8), [5, 0, 3, 7, 1, 2, 4, 6], 0
    for num_tokens in steps:
        pool.write(table, start, start + num_tokens)
        start += num_tokens
    num_blocks = -(-start // BLOCK_SIZE)
    query = torch.randn(1, SHAPE.num_kv_heads, SHAPE.group_size, SHAPE.head_dim)
    bounds = pool.summaries.score_bounds(1, query, torch.tensor([table[:num_blocks]]))
    keys, _ = pool.rows(1, table, start)
    scores = torch.einsum("hgd,khd->hgk", query[0], keys).amax(1)
    for position in range(start):
        assert (scores[:, position] <= bounds[0, :, position // BLOCK_SIZE] + 1e-5).all()


def test_a_block_used_again_forgets_its_former_rows():
    pool = Pool(2)
    pool.write([0], 0, 4, key=torch.full((4, SHAPE.num_kv_heads, SHAPE.head_dim), 100.0))
    pool.write([0], 0, 1, key=torch.full((1, SHAPE.num_kv_heads, SHAPE.head_dim), 1.0))
    assert (pool.summaries.least[:, 0] == 1).all()
    assert (pool.summaries.greatest[:, 0] == 1).all()


def test_a_copied_block_knows_only_what_was_copied():
    pool = Pool(2)
    key = torch.arange(4.0).view(4, 1, 1).expand(-1, SHAPE.num_kv_heads, SHAPE.head_dim)
    pool.write([0], 0, 4, key=key)
    copies = [BlockCopy(0, 1, 2)]
    pool.store.copy_blocks(copies)
    assert (pool.summaries.greatest[:, 1] == 1).all()
    assert (pool.summaries.greatest[:, 0] == 3).all()


@pytest.mark.parametrize("kv_format", [FP32, KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD)])
def test_only_first_last_and_best_blocks_are_read(kv_format):
    """A key that fits the query best of all decides which block is chosen for its head."""
    torch.manual_seed(1)
    pool, table, length = Pool(16, kv_format), [9, 2, 11, 4, 15, 0, 7, 13], 30
    pool.write(table, 0, length)
    query = torch.randn(1, SHAPE.num_query_heads, SHAPE.head_dim)
    best = {0: 2, 1: 4}  # KV head -> place of the block that fits its queries
    for head, place in best.items():
        slot = table[place] * BLOCK_SIZE
        for layer in range(SHAPE.num_layers):
            rows = pool.store.keys.read(layer, slice(slot, slot + 4)).clone()
            rows[:, head] = 50 * query[0, 3 * head : 3 * head + 3].mean(0)
            pool.store.keys.write(layer, torch.arange(slot, slot + 4), rows)
            pool.summaries.note(layer, torch.arange(slot, slot + 4))
    reads = SparseReads(num_top_blocks=4)
    span = SequenceSpan(table, length - 1, 1, is_answer=True)
    output = SparseAttention([span], pool.store, reads).attend(0, query)
    keys, values = pool.rows(0, table, length)
    for head, place in best.items():
        positions = [p for p in range(length) if p // BLOCK_SIZE in (0, place, 6, 7)]
        assert len(positions) == reads.num_rows_read(span, BLOCK_SIZE) == 14
        expected = dense(query[0], keys[positions], values[positions])
        torch.testing.assert_close(
            output[0, 3 * head : 3 * head + 3].double(),
            expected[3 * head : 3 * head + 3],
            atol=1e-5,
            rtol=1e-4,
        )


def naive(
    pool: Pool, layer: int, span: SequenceSpan, query: torch.Tensor, num_top_blocks: int
) -> torch.Tensor:
    """Attention of one query, block by block and head by head, over the blocks with the highest bounds."""
    keys, values = pool.rows(layer, list(span.block_table), span.length)
    blocks = [range(i, min(i + BLOCK_SIZE, span.length)) for i in range(0, span.length, BLOCK_SIZE)]
    outputs = []
    for head in range(SHAPE.num_query_heads):
        kv_head = head // SHAPE.group_size
        group = query[kv_head * SHAPE.group_size : (kv_head + 1) * SHAPE.group_size]

        def bound(block, kv_head=kv_head, group=group):
            rows = keys[list(block), kv_head]
            return max(float(torch.maximum(q * rows.amin(0), q * rows.amax(0)).sum()) for q in group)

        ranked = sorted(range(1, len(blocks) - 2), key=lambda i: bound(blocks[i]), reverse=True)
        chosen = [0, *ranked[: num_top_blocks - 3], len(blocks) - 2, len(blocks) - 1]
        positions = sorted(p for i in chosen for p in blocks[i])
        outputs.append(dense(query, keys[positions], values[positions])[head])
    return torch.stack(outputs)


@given(st.lists(st.integers(17, 32), min_size=1, max_size=4), st.integers(4, 8), st.integers(0, 2**32))
@settings(deadline=None, max_examples=40)
def test_sequences_of_a_step_read_what_the_naive_way_reads(lengths, num_top_blocks, seed):
    """Of any lengths, in a pool full of NaN."""
    torch.manual_seed(seed)
    pool, ids, spans = Pool(40), torch.randperm(40).tolist(), []
    reads = SparseReads(num_top_blocks)
    for i, length in enumerate(lengths):
        table = ids[8 * i : 8 * i + 8]
        span = SequenceSpan(table, length - 1, 1, is_answer=True)
        if reads.is_sparse(span, BLOCK_SIZE):
            pool.write(table, 0, length)
            spans.append(span)
    if not spans:
        return
    query = torch.randn(len(spans), SHAPE.num_query_heads, SHAPE.head_dim)
    output = SparseAttention(spans, pool.store, reads).attend(1, query)
    expected = torch.stack([naive(pool, 1, span, query[i], num_top_blocks) for i, span in enumerate(spans)])
    torch.testing.assert_close(output.double(), expected, atol=1e-5, rtol=1e-4)
