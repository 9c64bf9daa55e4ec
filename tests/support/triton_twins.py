"""Torch twins of the Triton kernels: the same effect, written to be read."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prefixcache import BlockCopy
from prefixcache_worker.attention.kv_pool import KvPool
from prefixcache_worker.attention.plan import AttentionPlan
from prefixcache_worker.attention.triton.partials import Partials
from prefixcache_worker.attention.triton.step_table import TASK_FIELDS, PlanTable


def paged_attention_twin(
    query: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
    keys: KvPool,
    values: KvPool,
    layer: int,
    table: PlanTable,
    partials: Partials,
    *,
    plan: AttentionPlan,
    tile_queries: int,
    scale: float,
) -> None:
    """`paged_attention`, in float64; what a query sees is looked up row by row. Fixed scales of values are
    left out, as there."""
    num_kv_heads = keys.rows.shape[2]
    group_size, size = query.shape[1] // num_kv_heads, plan.block_size
    for fields in table.tasks.tolist():
        task = dict(zip(TASK_FIELDS, fields, strict=True))
        first = task["first_position"]
        end = min(task["num_queries"], task["first_query"] + tile_queries)
        for row in range(task["first_query"], end):
            token = row // group_size
            position = plan.positions[task["first_token"] + token]
            seen = [p for p in range(first, first + task["num_rows"]) if sees(plan, position, p)]
            blocks = [task["first_block"] + p // size - first // size for p in seen]
            ids = table.block_ids[blocks] if seen else []
            slots = torch.tensor([id * size + p % size for id, p in zip(ids, seen, strict=True)]).long()
            for kv_head in range(num_kv_heads):
                head = kv_head * group_size + row % group_size
                key, value = (pool.read(layer, slots)[:, kv_head].double() for pool in (keys, values))
                if values.fixed_scale is not None:
                    value = value / values.fixed_scale[layer, kv_head]
                scores = key @ query[task["first_token"] + token, head].double()
                scores *= scale / torch.log(torch.tensor(2.0))
                peak = scores.max() if seen else torch.tensor(-torch.inf)
                weights = torch.exp2(scores - peak)
                partial = task["first_partial"] + token
                partials.output[partial, head] = weights @ value
                partials.peak[partial, head] = peak
                partials.total[partial, head] = weights.sum()


def sees(plan: AttentionPlan, position: int, row: int) -> bool:
    """Whether the query at `position` reads the row at position `row`."""
    if plan.window is None or row < plan.window.num_sinks:
        return row <= position
    return position - plan.window.size < row <= position


def merge_partials_twin(
    partials: Partials,
    partial_ids: Sequence[Sequence[int]],  # of each token
    output: torch.Tensor,  # [num_tokens, num_query_heads, head_dim]
) -> None:
    """`merge_partials`, in float64 and all of a token's partials at once."""
    for token, ids in enumerate(partial_ids):
        peak = partials.peak[list(ids)].double()  # [num_partials of the token, num_query_heads]
        weights = torch.exp2(peak - peak.amax(0)) if ids else peak
        total = (weights * partials.total[list(ids)]).sum(0)
        output[token] = (
            (weights[..., None] * partials.output[list(ids)]).sum(0) / total[:, None]
        ).nan_to_num(0)


def copy_blocks_twin(tensors: Sequence[torch.Tensor], copies: Sequence[BlockCopy], block_size: int) -> None:
    """`copy_blocks`."""
    for source, target, num_slots in copies:
        for tensor in tensors:
            rows = tensor[:, source * block_size : source * block_size + num_slots]
            tensor[:, target * block_size : target * block_size + num_slots] = rows
