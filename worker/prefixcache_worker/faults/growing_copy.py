"""Each step copies all rows that a sequence has so far.

What `keys = torch.cat([keys, new_key])` does in a cache that grows by one row at a time: the answer is
right, and a token costs the more, the later it comes.
"""

from __future__ import annotations

import torch

from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan
from prefixcache_worker.engine.engine import Engine
from prefixcache_worker.model.model import StepAttention


def plant(engine: Engine) -> None:
    """The attention of every step copies the rows of the sequences that decode, in every layer."""
    engine._attention = _CopyingBackend(engine._attention)


class _CopyingBackend:
    def __init__(self, backend: AttentionBackend) -> None:
        self._backend = backend

    def __call__(self, plan: AttentionPlan, store: KvStore) -> StepAttention:
        slots = [_slots_of(span, plan.block_size) for span in plan.spans if span.is_answer]
        return _CopyingAttention(self._backend(plan, store), store, slots)


class _CopyingAttention:
    def __init__(self, attention: StepAttention, store: KvStore, slots: list[torch.Tensor]) -> None:
        self._attention = attention
        self._store = store
        self._slots = slots

    def attend(self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        output = self._attention.attend(layer, query, key, value)
        for slots in self._slots:
            for pool in (self._store.keys, self._store.values):
                pool.rows[layer].index_select(0, slots)
        return output


def _slots_of(span: SequenceSpan, block_size: int) -> torch.Tensor:  # [rows] int64
    """Where the rows of a sequence lie that it has not given back."""
    blocks = torch.tensor(span.block_table)[:, None] * block_size
    slots = (blocks + torch.arange(block_size)).flatten()[: span.length]
    return slots[slots >= 0]
