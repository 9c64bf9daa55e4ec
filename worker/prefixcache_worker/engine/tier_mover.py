"""Copies blocks between the pool and the tiers behind it, as the cache orders."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from prefixcache import POOL, BlockId, Place, PrefixCache, TierMove
from prefixcache_worker.attention.kv_store import KvStore
from prefixcache_worker.attention.tier_store import TierStore

MAX_COPY_BYTES = 64 << 20
"""Of the blocks that are copied at once: as much is needed in passing on either side."""


class TierMover:
    """Executes the orders of one cache."""

    def __init__(self, cache: PrefixCache, kv_store: KvStore, stores: Sequence[TierStore]) -> None:
        """`stores` are those of the cache's tiers, the nearest first."""
        self._cache = cache
        self._kv_store = kv_store
        self._stores = stores

    def run(self) -> None:
        """Execute what is ordered. O(bytes of the blocks)."""
        self.execute(self._cache.take_moves())

    def execute(self, moves: Sequence[TierMove]) -> None:
        """The same as one move after the other, in as few copies as that allows.

        When one fails, nobody knows any more what is cached where: the cache is reset, and the error goes on.
        """
        num_at_once = max(1, MAX_COPY_BYTES // self._kv_store.record_bytes)
        try:
            for batch in batches_of(moves):
                for start in range(0, len(batch), num_at_once):
                    self._copy(batch[start : start + num_at_once])
        except Exception:
            self._cache.reset()
            raise

    def _copy(self, batch: Sequence[TierMove]) -> None:
        (source_tier, _), (target_tier, _) = batch[0]
        sources = [move.source.number for move in batch]
        targets = [move.target.number for move in batch]
        if target_tier == POOL:
            table = self._stores[source_tier - 1].read(sources, self._kv_store.device)
            self._kv_store.set_records(list(map(BlockId, targets)), table)
            return
        if source_tier == POOL:
            table = self._kv_store.records(list(map(BlockId, sources)))
        else:
            table = self._stores[source_tier - 1].read(sources, torch.device("cpu"))
        self._stores[target_tier - 1].write(targets, table)


class _Batch:
    """Moves between the same two tiers, none of which touches what another one writes."""

    def __init__(self, move: TierMove) -> None:
        self.moves: list[TierMove] = []
        self._sources: set[Place] = set()
        self._targets: set[Place] = set()
        self.add(move)

    def add(self, move: TierMove) -> None:
        self.moves.append(move)
        self._sources.add(move.source)
        self._targets.add(move.target)

    def is_alike(self, move: TierMove) -> bool:
        first = self.moves[0]
        return (first.source.tier, first.target.tier) == (move.source.tier, move.target.tier)

    def is_disturbed_by(self, move: TierMove) -> bool:
        """Whether it matters which of them comes first."""
        return move.source in self._targets or move.target in self._targets or move.target in self._sources


def batches_of(moves: Iterable[TierMove]) -> list[list[TierMove]]:
    """The moves in groups: a group at once, one group after the other, comes to the same as all in order.

    Eviction gives moves to two tiers in turn, which become two groups. O(moves * groups).
    """
    batches: list[_Batch] = []
    for move in moves:
        home: _Batch | None = None
        for batch in reversed(batches):
            if batch.is_disturbed_by(move):
                break
            if batch.is_alike(move):
                home = batch
        if home is None:
            batches.append(_Batch(move))
        else:
            home.add(move)
    return [batch.moves for batch in batches]
