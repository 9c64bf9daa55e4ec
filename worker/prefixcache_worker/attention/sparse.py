"""Decoding that reads only the blocks of a long sequence that matter most: approximate, and opt-in.

After Quest (Tang et al. 2024): of every block the pool keeps, per channel, the least and the greatest key.
They bound the score of any row in the block, and a query reads the blocks with the highest bounds.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch

from prefixcache_worker.attention.cpu import attend_run
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.model.model import StepAttention
from prefixcache_worker.profiler_range import ATTENTION, profiler_range

NUM_FIRST_BLOCKS = 1
"""Always read: queries put much of their weight on the beginning (Xiao et al. 2023)."""
NUM_LAST_BLOCKS = 2
"""Always read: what has just been said, and the block that is being written."""


class SparseReads(NamedTuple):
    """How many blocks a decoding query reads of each KV head, in layers without a window."""

    num_top_blocks: int

    def is_sparse(self, span: SequenceSpan, block_size: int) -> bool:
        """Whether this step of a sequence leaves rows out: it answers, and has more blocks than are read.

        Prompts are read in full, so that what they leave in the tree is right for everybody.
        """
        return span.is_answer and span.num_tokens == 1 and -(-span.length // block_size) > self.num_top_blocks

    def num_rows_read(self, span: SequenceSpan, block_size: int) -> int:
        """KV rows that this step of a sequence reads of each layer and head."""
        if not self.is_sparse(span, block_size):
            return span.length
        return (self.num_top_blocks - 1) * block_size + (span.length - 1) % block_size + 1


class SparseAttention:
    """Decoding sequences of one step, each reading `num_top_blocks` blocks for every KV head."""

    def __init__(
        self,
        spans: Sequence[SequenceSpan],
        store: KvStore,
        reads: SparseReads,
    ) -> None:
        """Requires: every span is sparse by `reads`, and the store keeps summaries."""
        size, device = store.block_size, store.device
        assert all(reads.is_sparse(span, size) for span in spans)
        assert store.summaries is not None
        self._store = store
        self._summaries = store.summaries
        self._num_top_blocks = reads.num_top_blocks
        if store.listener is not None:
            store.listener.sparsely_planned(spans, reads.num_top_blocks)
        num_blocks = [-(-span.length // size) for span in spans]
        longest = max(num_blocks)
        # Padding repeats the first block; what it may still be chosen for is masked.
        tables = [
            [*span.block_table[:count], *[span.block_table[0]] * (longest - count)]
            for span, count in zip(spans, num_blocks, strict=True)
        ]
        self._tables = torch.tensor(tables, device=device)
        self._lengths = torch.tensor([span.length for span in spans], device=device)
        counts = torch.tensor(num_blocks, device=device)[:, None]
        places = torch.arange(longest, device=device)
        self._is_missing = (places >= counts)[:, None]
        self._is_kept = (
            (places < NUM_FIRST_BLOCKS) | ((places >= counts - NUM_LAST_BLOCKS) & (places < counts))
        )[:, None]

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_sequences, num_query_heads, head_dim]
    ) -> torch.Tensor:  # [num_sequences, num_query_heads, head_dim]
        """Attention over the chosen blocks. Requires: the step's rows are written."""
        shape, size = self._store.layout.shape, self._store.block_size
        num_sequences = len(query)
        grouped = query.view(num_sequences, shape.num_kv_heads, shape.group_size, shape.head_dim)
        bounds = self._summaries.score_bounds(layer, grouped, self._tables)
        bounds = bounds.masked_fill(self._is_kept, torch.inf).masked_fill(self._is_missing, -torch.inf)
        chosen = bounds.topk(self._num_top_blocks, dim=-1).indices.sort(dim=-1).values  # in position order
        offsets = torch.arange(size, device=query.device)
        positions = (chosen[..., None] * size + offsets).flatten(2)  # [sequences, heads, rows]
        block_ids = self._tables[:, None].expand_as(bounds).gather(2, chosen)
        slots = (block_ids[..., None] * size + offsets).flatten(2)
        is_unwritten = positions >= self._lengths[:, None, None]
        slots = torch.where(is_unwritten, slots[..., :1], slots)  # whatever lies there may be NaN
        mask = torch.zeros(positions.shape, device=query.device).masked_fill_(is_unwritten, -torch.inf)
        key, value = (pool.read_heads(layer, slots) for pool in (self._store.keys, self._store.values))
        output = attend_run(grouped, key, value, scale=shape.scale, mask=mask[:, :, None]).output
        return output.reshape(query.shape)


class SparseSplit(NamedTuple):
    """A plan's sequences, parted into those that leave rows out and the others, which are planned again."""

    sparse_spans: tuple[SequenceSpan, ...]
    sparse_tokens: tuple[int, ...]
    """Of each of them the one token, by its place in the batch."""
    dense_tokens: tuple[int, ...]
    dense_plan: AttentionPlan | None
    """None when there are no others."""

    def num_rows_read(self, reads: SparseReads, block_size: int) -> int:
        """KV rows that the step reads per layer."""
        num_dense = 0 if self.dense_plan is None else self.dense_plan.num_rows_read
        return num_dense + sum(reads.num_rows_read(span, block_size) for span in self.sparse_spans)


def split_sparse(plan: AttentionPlan, reads: SparseReads) -> SparseSplit:
    """Part a plan without a window. The others share among themselves what they shared before."""
    assert plan.window is None
    sparse: list[SequenceSpan] = []
    dense: list[SequenceSpan] = []
    sparse_tokens: list[int] = []
    dense_tokens: list[int] = []
    first = 0
    for span in plan.spans:
        is_sparse = reads.is_sparse(span, plan.block_size)
        (sparse if is_sparse else dense).append(span)
        (sparse_tokens if is_sparse else dense_tokens).extend(range(first, first + span.num_tokens))
        first += span.num_tokens
    dense_plan = plan_attention(dense, plan.block_size) if dense else None
    assert dense_plan is None or dense_plan.order == tuple(range(len(dense))), "a part in another order"
    return SparseSplit(tuple(sparse), tuple(sparse_tokens), tuple(dense_tokens), dense_plan)


class SparseBackend:
    """An attention backend whose long decoding sequences read sparsely, and all others exactly."""

    def __init__(self, exact: Callable[[AttentionPlan, KvStore], StepAttention], reads: SparseReads) -> None:
        self._exact = exact
        self._reads = reads

    def __call__(self, plan: AttentionPlan, store: KvStore) -> StepAttention:
        if plan.window is not None:
            return self._exact(plan, store)
        split = split_sparse(plan, self._reads)
        if not split.sparse_spans:
            return self._exact(plan, store)
        dense = None if split.dense_plan is None else self._exact(split.dense_plan, store)
        return _AttentionOfBoth(split, dense, SparseAttention(split.sparse_spans, store, self._reads), store)


class _AttentionOfBoth:
    def __init__(
        self, split: SparseSplit, dense: StepAttention | None, sparse: SparseAttention, store: KvStore
    ) -> None:
        self._dense, self._sparse, self._store = dense, sparse, store
        self._dense_tokens = torch.tensor(split.dense_tokens, dtype=torch.int64, device=store.device)
        self._sparse_tokens = torch.tensor(split.sparse_tokens, dtype=torch.int64, device=store.device)
        size = store.block_size
        slots = [
            span.block_table[span.start // size] * size + span.start % size for span in split.sparse_spans
        ]
        self._slots = torch.tensor(slots, device=store.device)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `StepAttention.attend`."""
        output = torch.empty_like(query)
        if self._dense is not None:
            tokens = self._dense_tokens
            output[tokens] = self._dense.attend(layer, query[tokens], key[tokens], value[tokens])
        tokens = self._sparse_tokens
        self._store.write(layer, self._slots, key[tokens], value[tokens])
        with profiler_range(ATTENTION):
            output[tokens] = self._sparse.attend(layer, query[tokens])
        return output
