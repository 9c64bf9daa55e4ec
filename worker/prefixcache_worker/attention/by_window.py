"""Attention of models whose layers read through different windows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan
from prefixcache_worker.attention.sparse import SparseReads, split_sparse
from prefixcache_worker.model.model import AttentionShape, AttentionWindow, StepAttention


def distinct_windows(shape: AttentionShape) -> tuple[AttentionWindow | None, ...]:
    """The windows that a step needs a plan for, in order of their first layers."""
    return tuple(dict.fromkeys(shape.windows)) or (None,)


def rows_per_layer(
    plans: Sequence[AttentionPlan], shape: AttentionShape, sparse_reads: SparseReads | None = None
) -> tuple[int, int]:
    """KV rows that a layer reads in a step, and would read unshared: the mean over the layers, rounded."""
    windows = [shape.window(layer) for layer in range(shape.num_layers)]
    num_read = sum(_num_rows_read(plan, sparse_reads) * windows.count(plan.window) for plan in plans)
    num_unshared = sum(plan.num_rows_unshared * windows.count(plan.window) for plan in plans)
    return round(num_read / shape.num_layers), round(num_unshared / shape.num_layers)


def _num_rows_read(plan: AttentionPlan, sparse_reads: SparseReads | None) -> int:
    if sparse_reads is None or plan.window is not None:
        return plan.num_rows_read
    return split_sparse(plan, sparse_reads).num_rows_read(sparse_reads, plan.block_size)


def attention_by_window(
    plans: Sequence[AttentionPlan],
    store: KvStore,
    backend: Callable[[AttentionPlan, KvStore], StepAttention],
) -> StepAttention:
    """The step's attention: each layer's is the one made of the plan for its window.

    Requires a plan for each of `distinct_windows`.
    """
    if len(plans) == 1:
        return backend(plans[0], store)
    shape = store.layout.shape
    attention_of = {plan.window: backend(plan, store) for plan in plans}
    return AttentionByLayer([attention_of[shape.window(layer)] for layer in range(shape.num_layers)])


class AttentionByLayer:
    """Attention whose layers are not alike."""

    def __init__(self, layers: list[StepAttention]) -> None:
        self.layers = layers

    def attend(
        self,
        layer: int,
        query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
        key: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
        value: torch.Tensor,  # [num_tokens, num_kv_heads, head_dim]
    ) -> torch.Tensor:  # [num_tokens, num_query_heads, head_dim]
        """See `StepAttention.attend`."""
        return self.layers[layer].attend(layer, query, key, value)
