"""A mover of blocks whose stores hold poison wherever nobody has written."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from prefixcache import BlockId, PrefixCache
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.tier_store import TierStore
from prefixcache_worker.engine.tier_mover import TierMover

ALL_ONES = 255
"""As bytes of floats, NaN."""


class PoisonedTiers(TierMover):
    """Poisons freed blocks of the pool, but only after the copies ordered before they became free."""

    def __init__(self, cache: PrefixCache, store: KvStore, sizes: Sequence[int], poison: float) -> None:
        shapes = [(size, store.record_bytes) for size in sizes]
        super().__init__(
            cache, store, [TierStore(torch.full(shape, ALL_ONES, dtype=torch.uint8)) for shape in shapes]
        )
        self._store = store
        self._poison = poison
        self._freed: list[tuple[int, list[BlockId]]] = []
        """Blocks, and how many moves were ordered when they became free."""

    def poison(self, block_ids: list[BlockId]) -> None:
        """The blocks are free: nobody reads them any more but a copy that is ordered already."""
        num_moves = self._cache._tiers.num_pending_moves
        if num_moves:
            self._freed.append((num_moves, list(block_ids)))
        else:
            self._store.fill_blocks(block_ids, self._poison)

    def run(self) -> None:
        moves, done = self._cache.take_moves(), 0
        for num_moves, block_ids in self._freed:
            self.execute(moves[done:num_moves])
            self._store.fill_blocks(block_ids, self._poison)
            done = num_moves
        self._freed.clear()
        self.execute(moves[done:])
