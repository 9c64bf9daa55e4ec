"""The rules by which leaves are ranked for eviction, each in queues of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from prefixcache.errors import InvalidArgumentError
from prefixcache.history import Tombstone
from prefixcache.radix_node import OrderEntry, RadixNode
from prefixcache.turn_credit import TurnCreditPolicy

_PROTECTED_SHARE = 0.8
_USES_SHIFT = 40  # ticks stay below this many bits
_BALANCE_TOKENS = 8192
"""Position where attention costs a token as much as everything else; about that of a 1B model."""


class EvictionPolicy(Protocol):
    """Gives every node a queue and a rank in it, and chooses between the coldest of each queue."""

    name: str
    num_queues: int

    def inserted(self, node: RadixNode, num_blocks: int, remembered: Tombstone | None) -> None:
        """The last `num_blocks` of the node are new; `remembered` if they were lost before. O(1)."""

    def used(self, node: RadixNode) -> None:
        """A request has used the node. O(1)."""

    def removed(self, node: RadixNode, num_blocks: int, *, is_evicted: bool) -> None:
        """The node loses its last `num_blocks`, by eviction or because others took their place. O(1)."""

    def remembered(self, tombstone: Tombstone) -> None:
        """The history holds a lost run more. O(1)."""

    def forgotten(self, tombstone: Tombstone) -> None:
        """The history holds this lost run no more. O(1)."""

    def cleared(self) -> None:
        """All nodes are gone; the history stays. O(1)."""

    def choose(self, heads: Sequence[OrderEntry]) -> OrderEntry:
        """Which of these, one of each queue and at least two, goes first. O(queues)."""


class RankedPolicy:
    """One queue, sorted by a number that each node has."""

    num_queues = 1

    def __init__(self, name: str, rank: Callable[[RadixNode], int]) -> None:
        self.name = name
        self._rank = rank

    def inserted(self, node: RadixNode, num_blocks: int, remembered: Tombstone | None) -> None:
        node.rank = self._rank(node)

    def used(self, node: RadixNode) -> None:
        node.rank = self._rank(node)

    def removed(self, node: RadixNode, num_blocks: int, *, is_evicted: bool) -> None:
        """Nothing changes for the others."""

    def remembered(self, tombstone: Tombstone) -> None:
        """Nothing follows from it."""

    def forgotten(self, tombstone: Tombstone) -> None:
        """Nothing follows from it."""

    def cleared(self) -> None:
        """Nothing was counted."""

    def choose(self, heads: Sequence[OrderEntry]) -> OrderEntry:
        return min(heads)


def least_recently_used() -> RankedPolicy:
    """The block whose last use is longest ago."""
    return RankedPolicy("lru", lambda node: node.last_used)


def first_in_first_out() -> RankedPolicy:
    """The block that has been in the cache longest."""
    return RankedPolicy("fifo", lambda node: node.created)


def least_frequently_used() -> RankedPolicy:
    """The block that the fewest requests have used; of these, the least recently used."""
    return RankedPolicy("lfu", lambda node: (node.num_uses << _USES_SHIFT) + node.last_used)


class CostPolicy:
    """What is dear to compute and often used stays longer: Greedy-Dual (Cao and Irani 1997; Cherkasova 1998).

    A block's rank is the cost of computing it times its uses, on top of the rank of the last
    victim, by which everything that is not used ages. Cost grows with the position, as
    attention's part does.
    """

    name = "cost"
    num_queues = 1

    def __init__(self, block_size: int) -> None:
        self._blocks_to_double_cost = _BALANCE_TOKENS / block_size
        self._age = 0.0

    def inserted(self, node: RadixNode, num_blocks: int, remembered: Tombstone | None) -> None:
        self.used(node)

    def used(self, node: RadixNode) -> None:
        cost = 1 + node.num_blocks / self._blocks_to_double_cost
        node.rank = self._age + cost * (1 + node.num_uses)

    def removed(self, node: RadixNode, num_blocks: int, *, is_evicted: bool) -> None:
        if is_evicted:
            self._age = max(self._age, node.rank)

    def remembered(self, tombstone: Tombstone) -> None:
        """Nothing follows from it."""

    def forgotten(self, tombstone: Tombstone) -> None:
        """Nothing follows from it."""

    def cleared(self) -> None:
        """Nothing was counted."""

    def choose(self, heads: Sequence[OrderEntry]) -> OrderEntry:
        return min(heads)


class SegmentedPolicy:
    """Segmented LRU (Karedla 1994): what was used again is evicted only when it fills 80 % of the pool."""

    name = "slru"
    num_queues = 2

    def __init__(self, num_blocks: int) -> None:
        self._max_protected = _PROTECTED_SHARE * num_blocks
        self._num_blocks = [0, 0]
        """Cached blocks on probation, and protected ones."""

    def inserted(self, node: RadixNode, num_blocks: int, remembered: Tombstone | None) -> None:
        node.rank = node.last_used
        self._num_blocks[node.queue] += num_blocks

    def used(self, node: RadixNode) -> None:
        node.rank = node.last_used
        if node.num_uses:
            self._num_blocks[node.queue] -= len(node.block_ids)
            node.queue = 1
            self._num_blocks[1] += len(node.block_ids)

    def removed(self, node: RadixNode, num_blocks: int, *, is_evicted: bool) -> None:
        self._num_blocks[node.queue] -= num_blocks

    def remembered(self, tombstone: Tombstone) -> None:
        """Nothing follows from it."""

    def forgotten(self, tombstone: Tombstone) -> None:
        """Nothing follows from it."""

    def cleared(self) -> None:
        self._num_blocks = [0, 0]

    def choose(self, heads: Sequence[OrderEntry]) -> OrderEntry:
        on_probation, protected = heads
        return protected if self._num_blocks[1] > self._max_protected else on_probation


class ArcPolicy:
    """Adaptive Replacement (Megiddo and Modha 2003): learns how much room what was used once deserves.

    Blocks used once and blocks used again are two queues. A lost run that comes back shows that
    its queue was too short, and moves the target towards it.
    """

    name = "arc"
    num_queues = 2

    def __init__(self, num_blocks: int) -> None:
        self._max_blocks = num_blocks
        self._target_once = 0.0
        self._num_cached = [0, 0]
        self._num_lost = [0, 0]

    def inserted(self, node: RadixNode, num_blocks: int, remembered: Tombstone | None) -> None:
        node.rank = node.last_used
        if remembered is not None and remembered.num_blocks:
            queue = remembered.queue
            weight = max(1.0, self._num_lost[1 - queue] / max(1, self._num_lost[queue]))
            step = weight * min(num_blocks, remembered.num_blocks)
            target = self._target_once + (step if queue == 0 else -step)
            self._target_once = min(max(target, 0), self._max_blocks)
            num_before = len(node.block_ids) - num_blocks  # a leaf that grows
            self._num_cached[node.queue] -= num_before
            node.queue = 1
            self._num_cached[1] += num_before
        self._num_cached[node.queue] += num_blocks

    def used(self, node: RadixNode) -> None:
        node.rank = node.last_used
        if node.num_uses:
            self._num_cached[node.queue] -= len(node.block_ids)
            node.queue = 1
            self._num_cached[1] += len(node.block_ids)

    def removed(self, node: RadixNode, num_blocks: int, *, is_evicted: bool) -> None:
        self._num_cached[node.queue] -= num_blocks

    def remembered(self, tombstone: Tombstone) -> None:
        self._num_lost[tombstone.queue] += tombstone.num_blocks

    def forgotten(self, tombstone: Tombstone) -> None:
        self._num_lost[tombstone.queue] -= tombstone.num_blocks

    def cleared(self) -> None:
        self._num_cached = [0, 0]

    def choose(self, heads: Sequence[OrderEntry]) -> OrderEntry:
        once, again = heads
        return once if self._num_cached[0] > self._target_once else again


POLICIES = ("auto", "lru", "fifo", "lfu", "slru", "arc", "cost")


def make_policy(name: str, *, num_blocks: int, block_size: int) -> EvictionPolicy:
    """The policy of this name. Raises InvalidArgumentError when there is none."""
    match name:
        case "auto":
            return TurnCreditPolicy()
        case "lru":
            return least_recently_used()
        case "fifo":
            return first_in_first_out()
        case "lfu":
            return least_frequently_used()
        case "slru":
            return SegmentedPolicy(num_blocks)
        case "arc":
            return ArcPolicy(num_blocks)
        case "cost":
            return CostPolicy(block_size)
    raise InvalidArgumentError(f"policy is {name!r}; give one of {', '.join(POLICIES)}")
