"""Decode batches to measure, and the stopwatch they are measured with."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable
from typing import NamedTuple

import torch

from prefixcache_worker.attention.kv_format import KvDtype, KvFormat, KvScales
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.plan import AttentionPlan, SequenceSpan
from prefixcache_worker.attention.triton.backend import TritonAttention
from prefixcache_worker.attention.triton.tile import TileShape
from prefixcache_worker.model.model import AttentionShape

BLOCK_SIZE = 16
TAIL_ROWS = 128
"""Rows of each sequence behind the shared prefix."""
CACHE_BYTES = 256 << 20
"""Several times the L2 cache: a timed call reads at least so much before it comes back to the same rows."""
FORMATS = {
    "fp32": KvFormat(KvDtype.FP32),
    "fp16": KvFormat(KvDtype.FP16),
    "bf16": KvFormat(KvDtype.BF16),
    "int8": KvFormat(KvDtype.INT8, KvScales.TOKEN_HEAD),
    "int4": KvFormat(KvDtype.INT4, KvScales.TOKEN_HEAD),
}


class Scope(NamedTuple):
    """Where and how much is measured."""

    device: torch.device
    size: str
    """"full", "quick", or "dry": a few tiny shapes that show only that everything runs."""

    def choose(self, dry: object, quick: object, full: object):
        """What belongs to the size."""
        return {"dry": dry, "quick": quick, "full": full}[self.size]


class Case(NamedTuple):
    """One decode batch: sequences with a prefix that all of them share, and tails of their own."""

    prefix: int
    num_sequences: int
    head_dim: int
    group_size: int
    num_kv_heads: int = 8
    kv: str = "bf16"
    tail: int = TAIL_ROWS

    def __str__(self) -> str:
        return (
            f"prefix {self.prefix:6,} + {self.tail} x {self.num_sequences:3}, D {self.head_dim:3}, "
            f"{self.num_query_heads}/{self.num_kv_heads} heads, {self.kv}"
        )

    @property
    def num_query_heads(self) -> int:
        return self.num_kv_heads * self.group_size

    @property
    def shape(self) -> AttentionShape:
        return AttentionShape(
            num_layers=1,
            num_query_heads=self.num_query_heads,
            num_kv_heads=self.num_kv_heads,
            head_dim=self.head_dim,
        )

    @property
    def row_bytes(self) -> int:
        """Key and value of one token in one layer."""
        return FORMATS[self.kv].block_bytes(self.shape, 1)

    @property
    def dtype(self) -> torch.dtype:
        """Of queries, and of peers' rows."""
        return FORMATS[self.kv].dtype.storage if self.kv in ("fp32", "fp16") else torch.bfloat16

    def spans(self) -> list[SequenceSpan]:
        """One new token for each sequence, over scattered blocks."""
        num_prefix, num_tail = self.prefix // BLOCK_SIZE, -(-self.tail // BLOCK_SIZE)
        ids = list(range(num_prefix + self.num_sequences * num_tail))
        random.Random(7).shuffle(ids)
        prefix, tails = ids[:num_prefix], ids[num_prefix:]
        length = self.prefix + self.tail - 3
        return [
            SequenceSpan([*prefix, *tails[i * num_tail : (i + 1) * num_tail]], length - 1, 1)
            for i in range(self.num_sequences)
        ]

    def store(self, spans: list[SequenceSpan], device: torch.device) -> KvStore:
        """Random rows, in as many layers as it takes to come back to none that are still in a cache."""
        num_blocks = num_blocks_of(spans)
        pool_bytes = num_blocks * BLOCK_SIZE * self.row_bytes
        num_layers = max(1, min(16, math.ceil(CACHE_BYTES / pool_bytes))) if device.type == "cuda" else 1
        return random_store(self.shape, num_layers, num_blocks, FORMATS[self.kv], device)

    def query(self, device: torch.device) -> torch.Tensor:
        size = self.num_sequences, self.num_query_heads, self.head_dim
        return torch.randn(size, device=device).to(self.dtype)


def num_blocks_of(spans: list[SequenceSpan]) -> int:
    return 1 + max(block_id for span in spans for block_id in span.block_table)


def random_store(
    shape: AttentionShape, num_layers: int, num_blocks: int, kv_format: KvFormat, device: torch.device
) -> KvStore:
    shape = AttentionShape(
        num_layers=num_layers,
        num_query_heads=shape.num_query_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
    )
    store = KvStore(shape, num_blocks=num_blocks, block_size=BLOCK_SIZE, kv_format=kv_format, device=device)
    slots = torch.arange(num_blocks * BLOCK_SIZE, device=device)
    for layer in range(num_layers):
        for pool in (store.keys, store.values):
            for part in slots.split(1 << 16):
                size = len(part), shape.num_kv_heads, shape.head_dim
                pool.write(layer, part, torch.randn(size, device=device))
    return store


def our_run(
    plan: AttentionPlan, store: KvStore, query: torch.Tensor, tile: TileShape | None = None
) -> Callable[[], None]:
    """Reads of all layers by the Triton backend, the writes left out as peers' are."""
    attention = TritonAttention(plan, store, tile=tile).prepare()

    def run() -> None:
        for layer in range(store.layout.shape.num_layers):
            attention.read(layer, query)

    return run


def stopwatch(
    run: Callable[[], object], device: torch.device, *, budget: float = 0.02
) -> Callable[[], float]:
    """Seconds of one run, by bursts of about `budget` seconds; on a GPU of a recorded graph."""
    if device.type != "cuda":
        run()
        return lambda: _seconds(run)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        run()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)

    def burst(count: int) -> float:
        start.record()
        for _ in range(count):
            graph.replay()
        end.record()
        torch.cuda.synchronize()
        return start.elapsed_time(end) * 1e-3 / count

    burst(2)
    count = max(1, min(200, int(budget / max(burst(2), 1e-7))))
    return lambda: burst(count)


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start
