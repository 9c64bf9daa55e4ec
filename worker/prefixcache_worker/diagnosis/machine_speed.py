"""How fast the machine's memory is, and attention over both layouts of the pool."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import torch

from prefixcache import BlockId
from prefixcache_worker.attention.backend import AttentionBackend
from prefixcache_worker.attention.kv_pool import KvPool
from prefixcache_worker.attention.kv_store import FixedScales, KvStore
from prefixcache_worker.attention.layout import LayoutOrder
from prefixcache_worker.attention.plan import SequenceSpan
from prefixcache_worker.attention.planner import plan_attention

READ_BYTES = 256 << 20
"""Of memory that is read: several times what caches hold."""
READ_ROUNDS = 5
POOL_BYTES = 128 << 20
"""Of each scratch pool at most, but for a single layer: its layers are read one after the other, so that
caches do not have them any more."""
LAYOUT_ROUNDS = 7


class MachineSpeed(NamedTuple):
    """What was measured."""

    read_bytes_per_second: float
    seconds_of_layout: dict[LayoutOrder, float]
    """Of one decode step's attention in one layer."""


def measure_machine(
    store: KvStore,
    attention: AttentionBackend,
    *,
    num_rows: int,
    clock: Callable[[], float] = time.perf_counter,
) -> MachineSpeed:
    """Measure, for a few seconds, on pools of its own, which it frees: nothing of the store is touched.

    Requires: nothing else computes meanwhile.
    """
    return MachineSpeed(
        _read_bytes_per_second(store.device, clock),
        _seconds_of_layout(store, attention, num_rows, clock),
    )


def _read_bytes_per_second(device: torch.device, clock: Callable[[], float]) -> float:
    """The best of some rounds: what else the machine does can only make it slower."""
    memory = torch.ones(READ_BYTES // torch.float32.itemsize, device=device)
    return memory.nbytes / min(_seconds(memory.sum, device, clock) for _ in range(READ_ROUNDS))


def _seconds_of_layout(
    store: KvStore, attention: AttentionBackend, num_rows: int, clock: Callable[[], float]
) -> dict[LayoutOrder, float]:
    """Medians of rounds in turn, so that whatever disturbs one disturbs the other."""
    sides = {order: _Side(store, attention, order, num_rows) for order in LayoutOrder}
    rounds: dict[LayoutOrder, list[float]] = {order: [] for order in sides}
    for number in range(LAYOUT_ROUNDS + 1):
        for order, side in sides.items():
            seconds = _seconds(side.attend, store.device, clock) / side.num_layers
            if number:  # the first one warms up
                rounds[order].append(seconds)
    return {order: statistics.median(seconds) for order, seconds in rounds.items()}


class _Side:
    """A scratch pool in one layout, and a decode step of one sequence that reads it."""

    def __init__(
        self, store: KvStore, attention: AttentionBackend, order: LayoutOrder, num_rows: int
    ) -> None:
        shape, size = store.layout.shape, store.block_size
        num_blocks = -(-num_rows // size)
        layer_bytes = num_blocks * store.record_bytes // shape.num_layers
        self.num_layers = max(1, min(shape.num_layers, POOL_BYTES // layer_bytes))
        scratch = KvStore(
            replace(shape, num_layers=self.num_layers, windows=()),
            num_blocks=num_blocks,
            block_size=size,
            kv_format=store.format,
            fixed_scales=FixedScales(*(self._scales_of(pool) for pool in (store.keys, store.values))),
            device=store.device,
            order=order,
        )
        span = SequenceSpan(tuple(map(BlockId, range(num_blocks))), num_rows - 1, 1)
        self._attention = attention(plan_attention([span], size), scratch)
        self._query = torch.ones(1, shape.num_query_heads, shape.head_dim, device=store.device)
        self._row = torch.ones(1, shape.num_kv_heads, shape.head_dim, device=store.device)

    def attend(self) -> None:
        for layer in range(self.num_layers):
            self._attention.attend(layer, self._query, self._row, self._row)

    def _scales_of(self, pool: KvPool) -> torch.Tensor | None:
        return None if pool.fixed_scale is None else pool.fixed_scale[: self.num_layers]


def _seconds(work: Callable[[], object], device: torch.device, clock: Callable[[], float]) -> float:
    begun = clock()
    work()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return clock() - begun
