"""Attention over plan items in pure torch: each run of KV rows is one GEMM-shaped call on a strided view
of the pool, for all the queries that share it; partial results merge by log-sum-exp.

Made for a CPU; runs wherever the pool is.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan, WorkItem

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
    causal: bool = False,
    mask: torch.Tensor | None = None,  # [batch, 1, 1, num_rows], added to the scores
) -> Partial:
    """Softmax attention with its log-sum-exp in plain torch.

    Serves where the fused operator is missing, and as its twin in tests.
    """
    scores = torch.matmul(query, key.transpose(-1, -2)) * query.shape[-1] ** -0.5
    if mask is not None:
        scores = scores + mask
    if causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
    lse = torch.logsumexp(scores, dim=-1)
    return Partial(torch.matmul((scores - lse[..., None]).exp(), value), lse)


def attend_flash(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> Partial:
    """`attend_dense` by torch's fused CPU operator: never materialises the scores."""
    return Partial(
        *torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, causal, attn_mask=mask
        )
    )


HAS_FLASH = hasattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu")
"""The fused operator is torch's own but not public, so a torch without it falls back."""


def attend_run(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    causal: bool = False,
    mask: torch.Tensor | None = None,
) -> Partial:
    """`attend_dense` by the best operator there is for the tensors' device."""
    attend = attend_flash if HAS_FLASH and query.device.type == "cpu" else attend_dense
    return attend(query, key, value, causal=causal, mask=mask)


def merge_partials(
    outputs: torch.Tensor,  # [num_levels, ..., num_queries, head_dim]
    lses: torch.Tensor,  # [num_levels, ..., num_queries]; -inf where a query has no such partial
) -> torch.Tensor:  # [..., num_queries, head_dim]
    """Combine partial results over disjoint rows, level by level in position order.

    Level 0 must be finite for every query. With o_i the outputs and l_i their log-sum-exps the result
    is sum(exp(l_i - l) o_i), l = logsumexp(l_i); an empty partial (0, -inf) changes nothing.
    """
    output, lse = outputs[0], lses[0]
    for level in range(1, len(outputs)):
        total = torch.logaddexp(lse, lses[level])
        output = output * (lse - total).exp().unsqueeze(-1)
        output += outputs[level] * (lses[level] - total).exp().unsqueeze(-1)
        lse = total
    return output


class CpuAttention:
    """`StepAttention` for one step of one plan. Makes its index tensors once, for all layers."""

    def __init__(self, plan: AttentionPlan, store: KvStore) -> None:
        shape = store.layout.shape
        self._store = store
        self._num_tokens = plan.num_tokens
        device = store.device
        self._slots = torch.tensor(plan.slot_mapping(), device=device)
        short: list[WorkItem] = []
        long: list[WorkItem] = []
        for item in plan.items:
            (short if item.num_tokens == 1 and item.num_rows <= SHORT_ROWS else long).append(item)
        self._short = _ShortItems(short, store.block_size, device) if short else None
        self._runs = [_Run(item, store.block_size, device) for item in long]
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
        num_kv_heads = key.shape[1]
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
        merged = merge_partials(self._outputs, self._lses)
        return merged.transpose(0, 1).reshape(query.shape)

    def _attend_one(self, layer: int, run: _Run, by_head: torch.Tensor) -> None:
        queries = by_head[:, run.tokens]  # [kv heads, tokens, group, dim]
        pools = self._store.keys, self._store.values
        key, value = (pool.read(layer, run.slots).transpose(0, 1) for pool in pools)  # [kv heads, rows, dim]
        output, lse = self._outputs[run.level, :, run.tokens], self._lses[run.level, :, run.tokens]
        if run.causal:  # each query head is a head of its own; its KV rows are a view, not a copy
            partial = attend_run(
                queries.transpose(1, 2),
                key[:, None].expand(-1, queries.shape[2], -1, -1),
                value[:, None].expand(-1, queries.shape[2], -1, -1),
                causal=True,
            )
            output.copy_(partial.output.transpose(1, 2))
            lse.copy_(partial.lse.transpose(1, 2))
        else:  # all query heads of all sequences are rows of one product
            partial = attend_run(queries.flatten(1, 2)[None], key[None], value[None])
            output.copy_(partial.output[0].view_as(output))
            lse.copy_(partial.lse[0].view_as(lse))


class _Run:
    """One item, ready to be read in every layer."""

    def __init__(self, item: WorkItem, block_size: int, device: torch.device) -> None:
        self.tokens = slice(item.first_token, item.first_token + item.num_tokens)
        self.level = item.level
        self.causal = item.causal
        first_id = item.block_ids[0]
        first_slot = first_id * block_size + item.first_row
        contiguous = item.block_ids == tuple(range(first_id, first_id + len(item.block_ids)))
        # A slice where the blocks lie one after the other: read without gathering.
        self.slots = (
            slice(first_slot, first_slot + item.num_rows)
            if contiguous
            else torch.tensor(_slots_of(item, block_size), device=device)
        )


class _ShortItems:
    """Many short runs of one query each, as one padded call.

    Padding repeats a row of the item itself: it is masked, and masking only works on finite rows.
    """

    def __init__(self, items: list[WorkItem], block_size: int, device: torch.device) -> None:
        longest = max(item.num_rows for item in items)
        slots = [_slots_of(item, block_size) for item in items]
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
        return attend_run(grouped[self.tokens], key, value, mask=self._mask)


def _slots_of(item: WorkItem, block_size: int) -> list[int]:
    rows = range(item.first_row, item.first_row + item.num_rows)
    return [item.block_ids[row // block_size] * block_size + row % block_size for row in rows]
