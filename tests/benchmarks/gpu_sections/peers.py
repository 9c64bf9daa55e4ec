"""What others take for the same reads."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F  # noqa: N812

from gpu_sections.cases import BLOCK_SIZE, CACHE_BYTES, Case, num_blocks_of
from prefixcache_worker.attention.plan import SequenceSpan


class PeerRun(NamedTuple):
    """A call to time, and how many layers' reads it makes."""

    run: Callable[[], None]
    num_layers: int


def sdpa_run(case: Case, spans: list[SequenceSpan], device: torch.device) -> PeerRun:
    """torch's fused attention over contiguous rows, a group's query heads packed as query rows."""
    length = spans[0].length
    row_bytes = 2 * case.num_kv_heads * case.head_dim * case.dtype.itemsize
    copies = max(1, min(8, math.ceil(CACHE_BYTES / (case.num_sequences * length * row_bytes))))
    if device.type != "cuda":
        copies = 1
    shape = (copies, 2, case.num_sequences, case.num_kv_heads, length, case.head_dim)
    rows = torch.empty(shape, dtype=case.dtype, device=device).normal_()
    query = case.query(device).unflatten(1, (case.num_kv_heads, case.group_size))

    def run() -> None:
        for key, value in rows:
            F.scaled_dot_product_attention(query, key, value)

    return PeerRun(run, copies)


def flashinfer_run(case: Case, spans: list[SequenceSpan], device: torch.device) -> PeerRun:
    """FlashInfer's two-level cascade over its own paged cache. Raises ImportError where there is none."""
    import flashinfer

    count, num_prefix = case.num_sequences, case.prefix // BLOCK_SIZE
    num_blocks = num_blocks_of(spans)
    row_bytes = 2 * case.num_kv_heads * case.head_dim * case.dtype.itemsize
    copies = max(1, min(16, math.ceil(CACHE_BYTES / (num_blocks * BLOCK_SIZE * row_bytes))))
    size = (copies, num_blocks, 2, BLOCK_SIZE, case.num_kv_heads, case.head_dim)
    cache = torch.empty(size, dtype=case.dtype, device=device).normal_()
    query = case.query(device)

    def ints(values: Sequence[int]) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=device)

    tails = [block_id for span in spans for block_id in span.block_table[num_prefix:]]
    num_tail = len(tails) // count
    wrapper = flashinfer.MultiLevelCascadeAttentionWrapper(
        2, torch.empty(256 << 20, dtype=torch.uint8, device=device), "NHD"
    )
    wrapper.plan(
        [ints([0, count]), ints(range(count + 1))],
        [ints([0, num_prefix]), ints(range(0, len(tails) + 1, num_tail))],
        [ints(spans[0].block_table[:num_prefix]), ints(tails)],
        [ints([BLOCK_SIZE]), ints([spans[0].length % BLOCK_SIZE or BLOCK_SIZE] * count)],
        case.num_query_heads,
        case.num_kv_heads,
        case.head_dim,
        BLOCK_SIZE,
        q_data_type=case.dtype,
    )

    def run() -> None:
        for layer in cache:
            wrapper.run(query, layer)

    return PeerRun(run, copies)
