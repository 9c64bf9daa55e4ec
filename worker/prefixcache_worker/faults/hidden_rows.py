"""Reads of more rows than there are to see, which the faults of index arithmetic have in common."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch

from prefixcache import BlockId
from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.by_window import distinct_windows
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import SEGMENT_ROWS, AttentionPlan, SequenceSpan, WorkItem
from prefixcache_worker.attention.planner import AttentionPlanner
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.model.model import AttentionWindow, StepAttention


class Excess(NamedTuple):
    """What is read of a sequence behind its last row."""

    num_rows: int
    block_ids: Sequence[BlockId] = ()
    """Where the rows lie that its own table has no room for."""


NO_EXCESS = Excess(0)

ExcessOf = Callable[[Sequence[SequenceSpan]], Sequence[Excess]]
"""The excess of each sequence of a step, in the order of the batch."""


def read_in_excess(engine: Engine, excess_of: ExcessOf) -> None:
    """From now on the engine's plans read these rows too, and its attention fetches them for nothing."""
    windows = distinct_windows(engine.kv_store.layout.shape)
    engine._planner = _ExcessPlanner(engine.cache.block_size, windows, excess_of)
    engine._attention = _ExcessBackend(engine._attention)


class _ExcessPlanner(AttentionPlanner):
    def __init__(
        self, block_size: int, windows: Sequence[AttentionWindow | None], excess_of: ExcessOf
    ) -> None:
        super().__init__(block_size, windows)
        self._excess_of = excess_of

    def plan(self, spans: Sequence[SequenceSpan]) -> tuple[AttentionPlan, ...]:
        plans = super().plan(spans)
        return tuple(plan._replace(items=(*plan.items, *self._hidden_items(plan))) for plan in plans)

    def _hidden_items(self, plan: AttentionPlan) -> Iterator[WorkItem]:
        """Positions behind a sequence's end, which none of its tokens sees."""
        token = 0
        for span, excess in zip(plan.spans, self._excess_of(plan.spans), strict=True):
            table = [*span.block_table, *excess.block_ids]
            level, first = plan.num_levels, span.length
            end = min(first + excess.num_rows, len(table) * self._block_size)
            while first < end:
                last = min(end, (first // SEGMENT_ROWS + 1) * SEGMENT_ROWS)
                first_block = first // self._block_size
                item = WorkItem(
                    block_ids=tuple(table[first_block : -(-last // self._block_size)]),
                    first_row=first % self._block_size,
                    num_rows=last - first,
                    first_position=first,
                    first_token=token,
                    num_tokens=span.num_tokens,
                    level=level,
                    num_sequences=1,
                    masked=True,
                )
                yield item
                first, level = last, level + item.num_levels
            token += span.num_tokens


class _ExcessBackend:
    """Another backend; what it only masks is copied besides, into a buffer that nobody looks at."""

    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend

    def __call__(self, plan: AttentionPlan, store: KvStore) -> StepAttention:
        positions = plan.positions
        hidden_slots = [
            slot
            for item in plan.items
            if item.first_position > positions[item.first_token + item.num_tokens - 1]
            for slot in item.slots(plan.block_size)
        ]
        return _FetchingAttention(self._backend(plan, store), store, hidden_slots)


class _FetchingAttention:
    def __init__(self, attention: StepAttention, store: KvStore, slots: list[int]) -> None:
        self._attention = attention
        self._store = store
        self._slots = torch.tensor(slots, dtype=torch.int64)

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        if len(self._slots):
            for pool in (self._store.keys, self._store.values):
                pool.rows[layer].index_select(0, self._slots)
        return self._attention.attend(layer, query, key, value)
