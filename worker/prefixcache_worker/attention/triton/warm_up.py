"""Compile and record everything at the start, so that no request waits for it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prefixcache import BlockCopy, BlockId
from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.by_window import attention_by_window, distinct_windows
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import AttentionPlanner
from prefixcache_worker.model.model import ForwardBatch, Model


@torch.inference_mode()
def warm_up(
    model: Model, store: KvStore, backend: AttentionBackend, *, max_batch_tokens: int, max_running: int
) -> None:
    """Run a step of each kind once: a prefill, decodes of every size that is recorded, a block's copy.

    Requires a pool that nobody uses yet: its rows are overwritten. Cost: seconds, more the first time.
    """
    planner = AttentionPlanner(store.block_size, distinct_windows(store.layout.shape))

    def run(spans: Sequence[SequenceSpan]) -> None:
        plans = planner.plan(spans)
        positions = torch.tensor(plans[0].positions, device=store.device)
        ends = torch.tensor([span.num_tokens for span in plans[0].spans], device=store.device).cumsum(0)
        batch = ForwardBatch(torch.zeros_like(positions), positions, positions + 1, ends - 1)
        model.forward(batch, attention_by_window(plans, store, backend))

    num_tokens = min(max_batch_tokens, model.context_length, store.num_blocks * store.block_size)
    all_blocks = [BlockId(block_id) for block_id in range(store.num_blocks)]
    run([SequenceSpan(all_blocks[: -(-num_tokens // store.block_size)], 0, num_tokens)])
    size = 1
    while size < 2 * max_running and size <= store.num_blocks:
        run([SequenceSpan([block_id], 0, 1) for block_id in all_blocks[:size]])
        size *= 2
    if store.num_blocks > 1:
        store.copy_blocks([BlockCopy(all_blocks[0], all_blocks[1], 1)])
