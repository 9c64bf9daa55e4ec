"""How long cached blocks stay, how often they are used, and why they leave."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from prefixcache.histogram import Histogram, HistogramCounts
from prefixcache.history import Loss
from prefixcache.quota import TenantAccount
from prefixcache.radix_node import RadixNode

LIFE_SECONDS = (0.1, 0.3, 1, 3, 10, 30, 60, 120, 300, 600, 1200, 1800, 3600, 7200, 14400, 43200, 86400)
"""Bounds of the histograms: from one step of a model to a day."""


class Departure(StrEnum):
    """Why a block left the cache. The first five are evictions."""

    OWN_REQUEST = "own_request"
    """A request of the tenant that had it needed room."""
    OTHER_REQUEST = "other_request"
    """Another tenant's request needed room, or, where it was public, anybody's."""
    CEILING = "ceiling"
    """Its tenant was at its ceiling, and a request of the same tenant needed room."""
    EXPIRED = "expired"
    """A pin or a priority had kept it until its time was over; then its room was needed."""
    ASKED = "asked"
    """Somebody called `evict`."""
    SUPERSEDED = "superseded"
    """It was partly filled, and another block has all its tokens and more."""
    RESET = "reset"
    """Everything was forgotten."""


def departure_of(
    node: RadixNode, loss: Loss, lost_for: TenantAccount | None, *, is_over_ceiling: bool
) -> Departure:
    """Why blocks of a node are evicted, given the tenant whose request needs them, if one does."""
    if loss is Loss.EXPIRED:
        return Departure.EXPIRED
    if is_over_ceiling:
        return Departure.CEILING
    if lost_for is None:
        return Departure.ASKED
    return Departure.OWN_REQUEST if lost_for is node.owner else Departure.OTHER_REQUEST


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockLifeStats:
    """Sums since the cache was made. Every block counts for itself. Seconds are of the cache's clock."""

    num_stored: int
    """Times that a block came into the tree. Less those that left, it is what the tree has."""
    num_left: Mapping[Departure, int]
    """By every cause there is."""
    residency: HistogramCounts
    """Seconds from when a block's node came into the tree to its eviction."""
    idle: HistogramCounts
    """Seconds from a block's last use to its eviction."""
    reuse_gap: HistogramCounts
    """Seconds from one use of a block to the next request that uses it."""


class BlockLife:
    """Takes down what happens to the blocks of the tree. O(1) for a run of blocks, whatever its length.

    Seconds are kept by node, not by block: of a node that grew while its request ran, the later blocks are
    as old as the first.
    """

    __slots__ = ("_idle", "_num_left", "_num_stored", "_residency", "num_evicted", "reuse_gap")

    def __init__(self) -> None:
        self._residency, self._idle = Histogram(LIFE_SECONDS), Histogram(LIFE_SECONDS)
        self.reuse_gap = Histogram(LIFE_SECONDS)
        """Seconds, which whoever touches a node observes, once for each block: that has to be fast."""
        self._num_stored = 0
        self._num_left = dict.fromkeys(Departure, 0)
        self.num_evicted = 0
        """Blocks evicted so far."""

    @property
    def num_cached(self) -> int:
        """Blocks that came and have not left."""
        return self._num_stored - sum(self._num_left.values())

    def stored(self, num_blocks: int) -> None:
        """Blocks have come into the tree."""
        self._num_stored += num_blocks

    def evicted(self, node: RadixNode, num_blocks: int, departure: Departure, seconds: float) -> None:
        """The last blocks of a node are evicted."""
        self.num_evicted += num_blocks
        self._num_left[departure] += num_blocks
        self._residency.observe(seconds - node.stored_seconds, num_blocks)
        self._idle.observe(seconds - node.used_seconds, num_blocks)

    def superseded(self, num_blocks: int) -> None:
        """Blocks have left because others have all their tokens."""
        self._num_left[Departure.SUPERSEDED] += num_blocks

    def reset(self) -> None:
        """All blocks have left."""
        self._num_left[Departure.RESET] += self.num_cached

    def stats(self) -> BlockLifeStats:
        """All counts now. O(bounds)."""
        return BlockLifeStats(
            num_stored=self._num_stored,
            num_left=dict(self._num_left),
            residency=self._residency.counts(),
            idle=self._idle.counts(),
            reuse_gap=self.reuse_gap.counts(),
        )
