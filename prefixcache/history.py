"""What became of blocks that are not in the tree any more, in bounded memory."""

from __future__ import annotations

from collections import OrderedDict
from enum import Enum
from typing import NamedTuple

from prefixcache.block_keys import BlockKey


class Loss(Enum):
    """Why a run of blocks is not in the tree."""

    EVICTED = "evicted"
    """Its blocks were needed."""
    EXPIRED = "expired"
    """A pin or a priority had kept it until its time was over; then its blocks were needed."""
    CACHE_OFF = "cache off"
    """It was computed by a request that does not use the cache."""


class Tombstone(NamedTuple):
    """What is remembered of a lost run, under the key of its first block."""

    loss: Loss
    tick: int
    """Number of the latest request when it was lost."""
    seconds: float
    """The cache's clock then."""
    policy: str
    """Name of the eviction policy that chose it; empty when none did."""
    lost_for: str
    """Tenant whose request needed the blocks; empty when `evict` was called."""
    num_blocks: int
    queue: int
    """Queue of the eviction order that its node was in."""
    turn: int
    """Turn of the conversation it belonged to."""


class History:
    """The latest `capacity` tombstones, each run under the chained key of its first block.

    A run is forgotten when its first block is back, though more of it may still be missing.
    Blocks go from the tail, so the first missing block of a prompt is the first of a lost run:
    one lookup tells what became of it. About 300 bytes a tombstone.
    """

    __slots__ = ("_capacity", "_tombstones")

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._tombstones: OrderedDict[BlockKey, Tombstone] = OrderedDict()

    def __len__(self) -> int:
        return len(self._tombstones)

    @property
    def capacity(self) -> int:
        return self._capacity

    def add(
        self, key: BlockKey, tombstone: Tombstone, behind: BlockKey | None = None
    ) -> tuple[Tombstone, list[Tombstone]]:
        """Remember a run, as one with that of `behind` when it was lost right before it.

        Returns what is held now, and what no more: what it replaces, and the oldest of all. O(1).
        """
        gone = []
        if key in self._tombstones:
            gone.append(self._tombstones.pop(key))
        if behind is not None and behind in self._tombstones:
            gone.append(self._tombstones.pop(behind))
            tombstone = tombstone._replace(num_blocks=tombstone.num_blocks + gone[-1].num_blocks)
        self._tombstones[key] = tombstone
        if len(self._tombstones) > self._capacity:
            gone.append(self._tombstones.popitem(last=False)[1])
        return tombstone, gone

    def get(self, key: BlockKey) -> Tombstone | None:
        """O(1)."""
        return self._tombstones.get(key)

    def pop(self, key: BlockKey) -> Tombstone | None:
        """The tombstone, which is not needed any more: the block is back. O(1)."""
        return self._tombstones.pop(key, None)
