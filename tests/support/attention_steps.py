"""One step of attention over a made-up pool, by a backend and by the reference."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import torch
from support.kv_formats import fixed_scales_of

from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.kv_format import FP32, KvDtype, KvFormat
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import plan_attention
from prefixcache_worker.attention.reference import ReferenceAttention
from prefixcache_worker.model.model import AttentionShape, AttentionWindow

FP16, BF16 = KvFormat(KvDtype.FP16), KvFormat(KvDtype.BF16)
FLOAT_FORMATS = (FP32, FP16, BF16)


def name_of(value: object) -> str | None:
    """For test ids."""
    return value.name if isinstance(value, KvFormat) else None


def tolerance(kv_format: KvFormat, query_dtype: torch.dtype = torch.float32) -> dict[str, float]:
    """Allowed differences from float64 over the same stored rows."""
    dtypes = {query_dtype, kv_format.dtype.storage}
    if torch.bfloat16 in dtypes:
        return {"atol": 1.5e-2, "rtol": 1e-2}
    if torch.float16 in dtypes:
        return {"atol": 1e-3, "rtol": 1e-3}
    return {"atol": 2e-5, "rtol": 1e-5}


class StepOutputs(NamedTuple):
    """Both [num_tokens, num_query_heads, head_dim]."""

    ours: torch.Tensor
    reference: torch.Tensor


def shape_of(
    num_kv_heads: int = 2,
    group_size: int = 3,
    head_dim: int = 8,
    num_layers: int = 2,
    *,
    score_scale: float | None = None,
) -> AttentionShape:
    return AttentionShape(
        num_layers=num_layers,
        num_query_heads=num_kv_heads * group_size,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        score_scale=score_scale,
    )


def run_both(
    backend: AttentionBackend,
    spans: Sequence[SequenceSpan],
    block_size: int,
    shape: AttentionShape,
    *,
    share: bool = True,
    window: AttentionWindow | None = None,
    order: LayoutOrder = LayoutOrder.LAYER_FIRST,
    kv_format: KvFormat = FP32,
    query_dtype: torch.dtype = torch.float32,
    device: str = "cpu",
    seed: int = 0,
    poison: float = torch.nan,
) -> StepOutputs:
    """The last layer's outputs over a pool in which only rows that somebody sees are written.

    All others are filled with `poison`.
    """
    torch.manual_seed(seed)
    plan = plan_attention(spans, block_size, window=window, share=share)
    num_blocks = 1 + max(block_id for span in spans for block_id in span.block_table)
    store = make_store(shape, num_blocks, block_size, kv_format, order=order, device=device)
    store.fill_blocks(range(num_blocks), poison)
    layer = shape.num_layers - 1
    for span in spans:
        first_seen = 0 if window is None else max(0, span.start - window.size + 1)
        num_sinks = 0 if window is None else min(window.num_sinks, first_seen)
        seen = [*range(num_sinks), *range(first_seen, span.start)]
        slots = [span.block_table[p // block_size] * block_size + p % block_size for p in seen]
        rows = torch.randn(2, len(slots), shape.num_kv_heads, shape.head_dim).to(device)
        store.write(layer, torch.tensor(slots, device=device, dtype=torch.int64), *rows)
    num_heads = shape.num_query_heads + 2 * shape.num_kv_heads
    heads = torch.randn(plan.num_tokens, num_heads, shape.head_dim).to(device, query_dtype)
    query, key, value = heads.split((shape.num_query_heads, shape.num_kv_heads, shape.num_kv_heads), dim=1)
    both = backend(plan, store), ReferenceAttention(plan, store)
    return StepOutputs(*(attention.attend(layer, query, key, value) for attention in both))


def make_store(
    shape: AttentionShape,
    num_blocks: int,
    block_size: int,
    kv_format: KvFormat,
    *,
    order: LayoutOrder = LayoutOrder.LAYER_FIRST,
    device: str = "cpu",
) -> KvStore:
    """An empty pool; where the format has constant scales, they suit elements of a standard normal."""
    return KvStore(
        shape,
        num_blocks=num_blocks,
        block_size=block_size,
        kv_format=kv_format,
        fixed_scales=fixed_scales_of(kv_format, shape),
        order=order,
        device=device,
    )


def outputs_by_token(
    block_ids: Iterable[int],
    sequences: Sequence[int],
    *,
    share: bool,
    num_tokens: int = 1,
    window: AttentionWindow | None = None,
    kv_format: KvFormat = FP32,
    query_dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> torch.Tensor:  # [3, num_tokens, num_query_heads, head_dim]; NaN for sequences that do not run
    """Outputs of up to three sequences behind a shared run of 38 blocks, by the Triton backend in one tile.

    The rows are the same in every call; `block_ids`, 50 of them, says where they lie.
    """
    from prefixcache_worker.attention.triton.backend import TritonAttention
    from prefixcache_worker.attention.triton.tile import TileShape

    ids = [int(block_id) for block_id in block_ids]
    generator = torch.Generator().manual_seed(0)

    def random(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator).to(device, query_dtype)

    shape = shape_of(1, 3, 16, num_layers=1)
    store = make_store(shape, 50, 16, kv_format, device=device)
    content = random(2, 800, 1, 16)
    query, key, value = (random(3, num_tokens, heads, 16) for heads in (3, 1, 1))
    slots = torch.tensor([block_id * 16 + row for block_id in ids for row in range(16)], device=device)
    store.write(0, slots, *content)
    spans = [
        SequenceSpan([*ids[:38], *ids[38 + 3 * i : 41 + 3 * i]], 38 * 16 + 3 + i, num_tokens)
        for i in sequences
    ]
    plan = plan_attention(spans, 16, window=window, share=share)
    order = torch.tensor(sequences)[list(plan.order)].to(device)
    attention = TritonAttention(plan, store, tile=TileShape(16, 32, num_warps=4, num_stages=2))
    outputs = torch.full(query.shape, torch.nan, dtype=query_dtype, device=device)
    step = attention.attend(0, *(rows[order].flatten(0, 1) for rows in (query, key, value)))
    outputs[order] = step.unflatten(0, (len(sequences), num_tokens))
    return outputs
