"""Attention over plan items in pure torch: each run of KV rows is one GEMM-shaped call on a strided view
of the pool, for all the queries that share it; partial results merge by log-sum-exp.

Made for a CPU; runs wherever the pool is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan, WorkItem
from prefixcache_worker.profiler_range import ATTENTION, profiler_range

SHORT_ROWS = 128
"""Single-query runs up to this long are gathered into one padded call: a call of its own costs more
than copying so few rows."""


class Partial(NamedTuple):
    """Attention over part of the rows, and what is needed to merge it with the rest."""

    output: torch.Tensor  # [..., num_queries, head_dim]
    lse: torch.Tensor  # [..., num_queries], natural log of the sum of exponentials


def attend_dense(
    query: torch.Tensor,  # [batch, heads, num_queries, head_dim]
    key: torch.Tensor,  # [batch, heads, num_rows, head_dim], any strides but 1 in the last
    value: torch.Tensor,  # as key
    *,
    scale: float,
    mask: torch.Tensor
    | None = None,  # broadcast to [batch, heads, num_queries, num_rows], added to the scores
) -> Partial:
    """Softmax attention with its log-sum-exp in plain torch. Each query must see a row.

    Serves where the fused operator is missing, and as its twin in tests.
    """
    scores = torch.matmul(query, key.transpose(-1, -2)) * scale
    if mask is not None:
        scores = scores + mask
    lse = torch.logsumexp(scores, dim=-1)
    return Partial(torch.matmul((scores - lse[..., None]).exp(), value), lse)


def attend_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
) -> Partial:
    """`attend_dense` by torch's fused CPU operator: never materialises the scores."""
    return Partial(
        *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, False, attn_mask=mask, scale=scale
        )
    )


HAS_FLASH = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
"""The fused operator is torch's own but not public, so a torch without it falls back."""


def attend_run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    scale: float,
    mask: torch.Tensor | None = None,
) -> Partial:
    """`attend_dense` by the best operator there is for the tensors' device."""
    attend = attend_flash if HAS_FLASH and query.device.type == "cpu" else attend_dense
    return attend(query, key, value, scale=scale, mask=mask)


def merge_partials(
    outputs: torch.Tensor,  # [num_levels, ..., num_queries, head_dim]
    lses: torch.Tensor,  # [num_levels, ..., num_queries]; -inf where a query has no such partial
) -> Partial:
    """Combine partial results over disjoint rows, level by level in position order.

    With o_i the outputs and l_i their log-sum-exps the result is sum(exp(l_i - l) o_i), l = logsumexp(l_i);
    an empty partial (0, -inf) changes nothing, and of empty ones the result is empty.
    """
    output, lse = outputs[0], lses[0]
    for level in range(1, len(outputs)):
        total = torch.logaddexp(lse, lses[level])
        base = total.masked_fill(total == -torch.inf, 0.0)
        output = output * (lse - base).exp().unsqueeze(-1)
        output += outputs[level] * (lses[level] - base).exp().unsqueeze(-1)
        lse = total
    return Partial(output, lse)


class CpuAttention:
    """`StepAttention` for one step of one plan. Makes its index tensors once, for all layers."""

    def __init__(self, plan: AttentionPlan, store: KvStore) -> None:
        shape = store.layout.shape
        self._store = store
        self._scale = shape.scale
        self._num_tokens = plan.num_tokens
        device = store.device
        self._slots = torch.tensor(plan.slot_mapping(), device=device)
        if store.listener is not None:
            store.listener.planned(plan)
        short: list[WorkItem] = []
        long: list[WorkItem] = []
        for item in plan.items:
            is_short = item.num_tokens == 1 and item.num_rows <= SHORT_ROWS and not item.masked
            (short if is_short else long).append(item)
        self._short = _ShortItems(short, plan.block_size, device) if short else None
        self._runs = [_Run(item, plan, shape.group_size, device) for item in long]
        # Every layer overwrites the same places; the others keep the empty partial (0, -inf).
        size = (plan.num_levels, shape.num_kv_heads, plan.num_tokens, shape.group_size)
        self._outputs = torch.zeros(*size, shape.head_dim, device=device)
        self._lses = torch.full(size, -torch.inf, device=device)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `StepAttention.attend`. Reads each item's rows once, for all its queries."""
        self._store.write(layer, self._slots, key, value)
        with profiler_range(ATTENTION):
            return self._read(layer, query)

    def _read(self, layer: int, query: torch.Tensor) -> torch.Tensor:
        """The second half of `attend`: the step's rows are in the pool."""
        num_kv_heads = self._store.layout.shape.num_kv_heads
        grouped = query.view(
            self._num_tokens, num_kv_heads, -1, query.shape[-1]
        )  # [tokens, kv heads, group, dim]
        by_head = grouped.transpose(0, 1).contiguous()  # [kv heads, tokens, group, dim]
        for run in self._runs:
            self._attend_one(layer, run, by_head)
        if self._short is not None:
            partial = self._short.attend(layer, grouped, self._store)
            self._outputs[self._short.levels, :, self._short.tokens] = partial.output
            self._lses[self._short.levels, :, self._short.tokens] = partial.lse
        merged = merge_partials(self._outputs, self._lses).output
        return merged.transpose(0, 1).reshape(query.shape)

    def _attend_one(self, layer: int, run: _Run, by_head: torch.Tensor) -> None:
        """All query heads of all the run's sequences are rows of one product."""
        queries = by_head[:, run.tokens].flatten(1, 2)  # [kv heads, tokens * group, dim]
        pools = self._store.keys, self._store.values
        key, value = (pool.read(layer, run.slots).transpose(0, 1) for pool in pools)  # [kv heads, rows, dim]
        partial = attend_run(queries[None], key[None], value[None], scale=self._scale, mask=run.mask)
        output, lse = self._outputs[run.level, :, run.tokens], self._lses[run.level, :, run.tokens]
        output.copy_(partial.output[0].view_as(output))
        lse.copy_(partial.lse[0].view_as(lse))
        if run.blind is not None:
            output.masked_fill_(run.blind[:, None, None], 0.0)
            lse.masked_fill_(run.blind[:, None], -torch.inf)


class _Run:
    """One item, ready to be read in every layer."""

    def __init__(self, item: WorkItem, plan: AttentionPlan, group_size: int, device: torch.device) -> None:
        self.tokens = slice(item.first_token, item.first_token + item.num_tokens)
        self.level = item.level
        first_id = item.block_ids[0]
        first_slot = first_id * plan.block_size + item.first_row
        contiguous = item.block_ids == tuple(range(first_id, first_id + len(item.block_ids)))
        # A slice where the blocks lie one after the other: read without gathering.
        self.slots = (
            slice(first_slot, first_slot + item.num_rows)
            if contiguous
            else torch.tensor(item.slots(plan.block_size), device=device)
        )
        self.mask: torch.Tensor | None = None  # [1, 1, tokens * group, rows]
        self.blind: torch.Tensor | None = None  # [tokens]: sees none of the rows, so the mask hides none
        if item.masked:
            position = torch.tensor(plan.positions[self.tokens], device=device)[:, None]
            row = torch.arange(item.first_position, item.end_position, device=device)
            hidden = row > position  # [tokens, rows]
            if plan.window is not None:
                hidden |= (row <= position - plan.window.size) & (row >= plan.window.num_sinks)
            self.blind = hidden.all(dim=1)
            hidden &= ~self.blind[:, None]
            mask = torch.zeros(hidden.shape, device=device).masked_fill_(hidden, -torch.inf)
            self.mask = mask.repeat_interleave(group_size, dim=0)[None, None]


class _ShortItems:
    """Many short runs of one query each, as one padded call.

    Padding repeats a row of the item itself: it is masked, and masking only works on finite rows.
    """

    def __init__(self, items: list[WorkItem], block_size: int, device: torch.device) -> None:
        longest = max(item.num_rows for item in items)
        slots = [item.slots(block_size) for item in items]
        padded = [row + row[:1] * (longest - len(row)) for row in slots]
        self._slots = torch.tensor(padded, device=device)
        lengths = torch.tensor([item.num_rows for item in items], device=device)
        padding = torch.arange(longest, device=device) >= lengths[:, None]
        mask = torch.zeros(padding.shape, device=device).masked_fill_(padding, -torch.inf)
        self._mask = mask[:, None, None]
        self.tokens = torch.tensor([item.first_token for item in items], device=device)
        self.levels = torch.tensor([item.level for item in items], device=device)

    def attend(
        self,
        layer: int,
        grouped: torch.Tensor,  # [num_tokens, num_kv_heads, group, head_dim]
        store: KvStore,
    ) -> Partial:  # [num_items, num_kv_heads, group, head_dim]
        key, value = (pool.read(layer, self._slots).transpose(1, 2) for pool in (store.keys, store.values))
        scale = store.layout.shape.scale
        return attend_run(grouped[self.tokens], key, value, scale=scale, mask=self._mask)
