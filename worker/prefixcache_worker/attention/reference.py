"""Attention the obvious way: float64, dense, one sequence at a time. The oracle of every backend."""

from __future__ import annotations

import torch

from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan


class ReferenceAttention:
    """`StepAttention` that looks at block tables only, so it also proves the plan's items right."""

    def __init__(self, plan: AttentionPlan, store: KvStore) -> None:
        self._plan = plan
        self._store = store
        self._slots = torch.tensor(plan.slot_mapping(), device=store.device)
        if store.listener is not None:
            store.listener.planned(plan)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `StepAttention.attend`. O(tokens * length) time and memory, in float64."""
        self._store.write(layer, self._slots, key, value)
        outputs, first = [], 0
        for span in self._plan.spans:
            outputs.append(self._attend_span(layer, span, query[first : first + span.num_tokens]))
            first += span.num_tokens
        return torch.cat(outputs).to(query.dtype)

    def _attend_span(self, layer: int, span: SequenceSpan, query: torch.Tensor) -> torch.Tensor:
        size, window = self._plan.block_size, self._plan.window
        row = torch.arange(span.length)
        position = torch.arange(span.start, span.length)[:, None]
        hidden = row > position  # [num_tokens, length]
        if window is not None:
            hidden |= (row <= position - window.size) & (row >= window.num_sinks)
        seen = ~hidden.all(
            dim=0
        )  # of rows that no query sees nothing is asked, not even that they are finite
        slots = torch.tensor([span.block_table[p // size] * size + p % size for p in row[seen].tolist()])
        shape = self._store.layout.shape
        rows = (pool.read(layer, slots).double() for pool in (self._store.keys, self._store.values))
        keys, values = (each.repeat_interleave(shape.group_size, dim=1) for each in rows)
        scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * shape.scale
        scores.masked_fill_(hidden[:, seen].to(scores.device), -torch.inf)
        return torch.einsum("hqk,khd->qhd", scores.softmax(-1), values)
