"""In which order cached blocks are given up."""

from __future__ import annotations

from collections.abc import Iterable

from sortedcontainers import SortedSet

from prefixcache.radix_node import RadixNode


def _least_recently_used(node: RadixNode) -> tuple[int, int]:
    return (node.last_used, node.serial)


class EvictionOrder:
    """The leaves whose last block can be evicted, the coldest first.

    Kept up to date by whoever changes a leaf: nothing is ever searched or rebuilt. A node's age
    must not change while it is in here, because the order would not notice.

    Invariant, proved by `check`: exactly the evictable leaves are in here, in order.
    """

    __slots__ = ("_leaves",)

    def __init__(self) -> None:
        self._leaves = SortedSet(key=_least_recently_used)

    def put(self, leaf: RadixNode) -> None:
        """Nothing happens when it is in here already. O(log leaves)."""
        self._leaves.add(leaf)

    def discard(self, node: RadixNode) -> None:
        """Nothing happens when it is not in here. O(log leaves)."""
        self._leaves.discard(node)

    def coldest(self) -> RadixNode | None:
        """The leaf to evict from next. O(1)."""
        leaf: RadixNode | None = self._leaves[0] if self._leaves else None
        return leaf

    def check(self, evictable: Iterable[RadixNode]) -> None:
        """Raise AssertionError unless exactly `evictable` is in here, in order. For tests."""
        assert list(self._leaves) == sorted(evictable, key=_least_recently_used)
