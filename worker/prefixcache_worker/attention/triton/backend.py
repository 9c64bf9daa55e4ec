"""Attention over plan items by Triton kernels: a layer is two launches that write, one reads, one merges."""

from __future__ import annotations

import torch

from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan
from prefixcache_worker.attention.triton.kv_write import write_rows
from prefixcache_worker.attention.triton.paged_attention import paged_attention
from prefixcache_worker.attention.triton.partials import Partials, merge_partials
from prefixcache_worker.attention.triton.runtime import IS_INTERPRETED
from prefixcache_worker.attention.triton.step_table import StepTable, tabulate
from prefixcache_worker.attention.triton.tile import MAX_HEAD_DIM, TileShape, choose_tile
from prefixcache_worker.model.model import AttentionWindow
from prefixcache_worker.profiler_range import ATTENTION, profiler_range


def refusal(store: KvStore) -> str | None:
    """Why the kernels cannot run over this pool; None when they can."""
    if not (store.device.type == "cuda" or IS_INTERPRETED):
        return f"it takes a pool on cuda, not on {store.device}"
    if store.summaries is not None:
        return "it reads every row, and cannot choose among blocks"
    if store.layout.shape.head_dim > MAX_HEAD_DIM:
        return f"it takes heads of up to {MAX_HEAD_DIM} elements, not {store.layout.shape.head_dim}"
    return None


class TableAttention:
    """Attention by the plan that its table was loaded with. All layers share one set of partial results."""

    def __init__(
        self,
        store: KvStore,
        table: StepTable,
        partials: Partials,
        *,
        window: AttentionWindow | None,
        tile: TileShape,
    ) -> None:
        """Requires plans of this window, tabulated for this tile, and room for their partial results."""
        self.table = table
        self.partials = partials
        self.tile = tile
        self._store = store
        self._window = window

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `StepAttention.attend`. Reads each run once for each tile of its queries. Awaits nothing."""
        query, key, value = (t if t.stride(2) == 1 else t.contiguous() for t in (query, key, value))
        write_rows(self._store.keys, layer, self.table.slots, key)
        write_rows(self._store.values, layer, self.table.slots, value)
        return self.read(layer, query)

    def read(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim], last stride 1
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """The second half of `attend`, for measurements: the step's rows are in the pool already."""
        keys, values = self._store.keys, self._store.values
        with profiler_range(ATTENTION):
            paged_attention(
                query,
                keys,
                values,
                layer,
                self.table,
                self.partials,
                self.tile,
                scale=self._store.layout.shape.scale,
                window=self._window,
            )
            output = torch.empty(query.shape, dtype=query.dtype, device=query.device)
            fixed_scale = None if values.fixed_scale is None else values.fixed_scale[layer]
            merge_partials(self.partials, self.table, output, fixed_scale)
        return output


class TritonAttention:
    """`StepAttention` for one step, on a GPU. Makes its table with the first layer, for all of them."""

    def __init__(self, plan: AttentionPlan, store: KvStore, *, tile: TileShape | None = None) -> None:
        """`tile`: for measurements and tests; by default the plan's widest item decides."""
        self.plan = plan
        self._store = store
        self._tile = tile
        self._attention: TableAttention | None = None
        if store.listener is not None:
            store.listener.planned(plan)

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `TableAttention.attend`."""
        if self._attention is None:
            self._attention = self.prepare()
        return self._attention.attend(layer, query, key, value)

    def prepare(self) -> TableAttention:
        """The plan in a table of its own, with room for just its partial results."""
        plan, store = self.plan, self._store
        shape = store.layout.shape
        widest = max(item.num_tokens for item in plan.items) * shape.group_size
        tile = self._tile or choose_tile(widest, shape.head_dim, store.keys.rows.dtype)
        tabulated = tabulate(plan, group_size=shape.group_size, tile_queries=tile.num_queries)
        table = StepTable(tabulated.size, store.block_size, store.device)
        table.load(tabulated)
        partials = Partials.empty(
            tabulated.size.num_partials, shape.num_query_heads, shape.head_dim, store.device
        )
        return TableAttention(store, table, partials, window=plan.window, tile=tile)
